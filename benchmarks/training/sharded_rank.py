"""One rank that trains stacks of layers, sharded one way after another.

It reports the seconds of its steps, the bytes sent and the memory held.

Run: `python -m benchmarks.training.sharded_rank FOLDER RANK SIZE ORDERS`, ORDERS being JSON of a list of `Order`;
`bench_sharded` does. The answer to the order in a place is the file `answer-PLACE-RANK` in the folder.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.training.sharded_orders import Order

TIMEOUT_S = 120
BATCH = 2
RESET_PEAK = "5"  # written to clear_refs: the peak of resident memory starts anew
KIB = 1024
SETTLE_S = 0.3  # until the last acknowledgements have passed


class _Slow(torch.autograd.Function):
    """Takes time forward, and twice as much backward."""

    @staticmethod
    def forward(context: Any, values: torch.Tensor, seconds: float) -> torch.Tensor:
        context.seconds = seconds
        time.sleep(seconds)
        return values.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(2 * context.seconds)
        return gradient, None


class _Layer(nn.Module):
    def __init__(self, width: int, seconds: float) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width, bias=False)
        self.seconds = seconds

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        moved = values + self.linear(values)
        slowed: torch.Tensor = _Slow.apply(moved, self.seconds) if self.seconds else moved
        return slowed


def make_model(order: Order) -> nn.Sequential:
    """Return the stack; the same on all ranks."""
    torch.manual_seed(1)
    seconds = order.compute_s / order.passes / 3 / order.num_layers
    return nn.Sequential(*(_Layer(order.width, seconds) for _ in range(order.num_layers)))


@dataclass
class Trained:
    """A model being trained: its backward pass, its step, and the sum of its squared weights, equal in all ways."""

    backward: Callable[[torch.Tensor, bool], None]
    step: Callable[[], None]
    digest: Callable[[], float]


def make_trained(order: Order, rank: int, size: int) -> Trained:
    """Shard the model as ordered."""
    model = make_model(order)
    make = {"ours": _ours, "fsdp2": _fsdp2, "ddp": _ddp, "deepspeed": _deepspeed}[order.way]
    return make(order, model, rank, size)


def _optimizer(order: Order, parameters: Any) -> torch.optim.Optimizer:
    chosen: torch.optim.Optimizer = getattr(torch.optim, order.optimizer)(parameters, lr=1e-3)
    return chosen


def _loss(module: Any, values: torch.Tensor, passes: int) -> torch.Tensor:
    loss: torch.Tensor = module(values).square().mean() / passes
    return loss


def _ours(order: Order, model: nn.Module, rank: int, size: int) -> Trained:
    from clary.train.parallel.sharded.build import shard_model
    from clary.train.parallel.sharded.groups import make_sharding_groups
    from clary.train.parallel.sharded.optimizer import ShardedOptimizer
    from clary.train.parallel.sharded.settings import ShardingSettings

    host = f"host-{rank // order.ranks_a_host}" if order.ranks_a_host else "host"
    groups = make_sharding_groups(dist.group.WORLD, order.degree, hierarchical=order.is_hierarchical, host=host)
    settings = ShardingSettings(param_persistence_threshold=0, gradient_clipping=0.0)
    sharded = shard_model(model, groups, settings)
    optimizer = ShardedOptimizer(_optimizer(order, model.parameters()), sharded)

    def backward(values: torch.Tensor, is_last: bool) -> None:
        if is_last:
            sharded.expect_last_backward()
        _loss(model, values, order.passes).backward()

    def step() -> None:
        optimizer.step()
        optimizer.zero_grad()

    def digest() -> float:
        total = torch.tensor([float(sum(flat.master_S.double().square().sum() for flat in sharded.flats))])
        dist.all_reduce(total)
        return float(total) / (size // order.degree)

    return Trained(backward, step, digest)


def _fsdp2(order: Order, model: nn.Module, rank: int, size: int) -> Trained:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    shape, names = ((size,), ("shard",))
    if order.degree < size:
        shape, names = (size // order.degree, order.degree), ("replicate", "shard")  # type: ignore[assignment]
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    for layer in model:
        fully_shard(layer, mesh=mesh)
    sharded: Any = fully_shard(model, mesh=mesh)
    optimizer = _optimizer(order, sharded.parameters())

    def backward(values: torch.Tensor, is_last: bool) -> None:
        sharded.set_requires_all_reduce(is_last)
        _loss(sharded, values, order.passes).backward()

    def step() -> None:
        optimizer.step()
        optimizer.zero_grad()

    def digest() -> float:
        return float(sum(one.full_tensor().double().square().sum() for one in sharded.parameters()))

    return Trained(backward, step, digest)


def _ddp(order: Order, model: nn.Module, rank: int, size: int) -> Trained:
    wrapped = nn.parallel.DistributedDataParallel(model)
    optimizer = _optimizer(order, model.parameters())

    def backward(values: torch.Tensor, is_last: bool) -> None:
        wrapped.require_backward_grad_sync = is_last
        _loss(wrapped, values, order.passes).backward()

    def step() -> None:
        optimizer.step()
        optimizer.zero_grad()

    return Trained(
        backward, step, lambda: float(sum(one.detach().double().square().sum() for one in model.parameters()))
    )


def _deepspeed(order: Order, model: nn.Module, rank: int, size: int) -> Trained:
    # It looks for its launcher's variables although there is a process group.
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank))
    import deepspeed
    from deepspeed.utils import safe_get_full_fp32_param

    settings = {
        "train_micro_batch_size_per_gpu": BATCH,
        "gradient_accumulation_steps": order.passes,
        "zero_allow_untested_optimizer": True,
        "steps_per_print": sys.maxsize,
        "gradient_clipping": 0.0,  # else to a norm of 1
        "zero_optimization": {
            "stage": 3,
            "stage3_param_persistence_threshold": 0,
            # Else it keeps what comes again soon, or would be gathered ahead again: all of a small model.
            "stage3_max_reuse_distance": 0,
            "stage3_prefetch_bucket_size": order.width**2,
        },
    }
    optimizer = _optimizer(order, model.parameters())
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings, dist_init_required=False)

    def backward(values: torch.Tensor, is_last: bool) -> None:
        engine.backward(_loss(engine, values, 1))  # which divides by the passes
        if not is_last:
            engine.step()  # counts them

    def digest() -> float:
        return float(sum(safe_get_full_fp32_param(one).double().square().sum() for one in engine.parameters()))

    return Trained(backward, engine.step, digest)


def _sent_bytes() -> int:
    """Bytes that this host has sent; 0 where it has no link."""
    for line in Path("/proc/net/dev").read_text(encoding="ascii").splitlines():
        name, _, columns = line.partition(":")
        if name.strip() == "eth0":
            return int(columns.split()[8])
    return 0


def _memory(field: str) -> int:
    """Bytes of this process, `VmRSS` now or `VmHWM` at the peak."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * KIB
    raise ValueError(field)


def run(order: Order, rank: int, size: int) -> dict[str, Any]:
    """Train and measure."""
    generator = torch.Generator().manual_seed(rank)

    def one_step(trained: Trained, width: int) -> None:
        for number in range(order.passes):
            trained.backward(torch.randn(BATCH, width, generator=generator), number == order.passes - 1)
        trained.step()

    small = dataclasses.replace(order, num_layers=2, width=16, compute_s=0.0)
    one_step(make_trained(small, rank, size), small.width)  # libraries are loaded, connections are there
    generator.manual_seed(rank)
    base = _memory("VmRSS")
    trained = make_trained(order, rank, size)
    for _ in range(order.num_warm):
        one_step(trained, order.width)
    Path("/proc/self/clear_refs").write_text(RESET_PEAK, encoding="ascii")
    seconds = []
    dist.barrier()
    time.sleep(SETTLE_S)
    before = _sent_bytes()
    for _ in range(order.num_steps):
        dist.barrier()
        began_s = time.monotonic()
        one_step(trained, order.width)
        seconds.append(time.monotonic() - began_s)
    dist.barrier()
    time.sleep(SETTLE_S)
    sent = _sent_bytes() - before
    peak = _memory("VmHWM") - base
    return {"seconds": seconds, "sent_bytes": sent, "peak_bytes": peak, "digest": trained.digest()}


def main(arguments: list[str]) -> None:
    """Join, run, answer, order by order."""
    folder, rank, size = Path(arguments[0]), int(arguments[1]), int(arguments[2])
    torch.set_num_threads(1)
    for place, words in enumerate(json.loads(arguments[3])):
        order = Order(**words)
        if order.backend == "smddp":
            from clary.train.collective.adapters.torch.registration import register

            register()
        store = dist.FileStore(str(folder / f"store-{place}"), size)
        timeout = timedelta(seconds=TIMEOUT_S)
        dist.init_process_group(order.backend, store=store, rank=rank, world_size=size, timeout=timeout)
        answer = run(order, rank, size) | {"torch": str(torch.__version__)}
        told = folder / f"answer-{place}-{rank}"
        told.with_suffix(".part").write_text(json.dumps(answer), encoding="ascii")
        told.with_suffix(".part").rename(told)
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # gloo's threads may take the interpreter down while it ends
