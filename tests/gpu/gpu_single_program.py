"""Work of one rank on a GPU: memory, precision, compiling, health checks, figures. Functions `test_...(rank, size)`."""

import shutil
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from gpu_world import IS_REHEARSAL, Absent, gpu, real_gpu
from torch import nn

from clary.agent.health.gpu_checks import check_gpus
from clary.agent.metrics.gpu_source import GpuSource
from clary.agent.metrics.xid_log import XidLog
from clary.base.clock import SystemClock
from clary.contract.health import FindingState
from clary.train.checkpoint.plans import agree_on_plan
from clary.train.checkpoint.ranks import Ranks
from clary.train.checkpoint.snapshot import Snapshot
from clary.train.parallel.memory.checkpointing import set_activation_checkpointing, use_offloader
from clary.train.parallel.memory.offloading import Offloader

WIDTH, ROWS, LAYERS = 256, 512, 6
FIGURES_S = 20.0
HIDDEN_SHARE = 0.5  # highest share of the copies' time that offloading may add to a step


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS))
        for block in self.blocks:
            set_activation_checkpointing(block)

    def forward(self, hidden):
        hidden = self.first(hidden)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return hidden


def rows(device, seed=3):
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(seed)).to(device)


def test_ddp_over_nccl(rank, size):
    device = real_gpu("there is no NCCL without a GPU")
    if not dist.is_nccl_available():
        raise Absent("this torch has no NCCL")
    group = dist.new_group(backend="nccl")
    model = nn.parallel.DistributedDataParallel(Deep().to(device), device_ids=[0], process_group=group)
    model(rows(device)).square().mean().backward()
    assert all(one.grad is not None and bool(one.grad.isfinite().all()) for one in model.parameters())


def test_offloading_gives_the_same_gradients(rank, size):
    device = gpu()
    gradients, offloader = [], Offloader(horizon=2)
    for one in (None, offloader):
        model = Deep().to(device)
        use_offloader(one)
        for _ in range(2):  # the second time with memory that was used before
            model.zero_grad()
            model(rows(device)).square().mean().backward()
        use_offloader(None)
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    for ours, theirs in zip(*gradients, strict=True):
        assert torch.equal(ours, theirs)
    offloader.close()
    if not IS_REHEARSAL:
        assert offloader.counts.offloaded_bytes >= LAYERS * ROWS * WIDTH * 4, offloader.counts


def test_offloading_copies_while_the_gpu_computes(rank, size):
    device = real_gpu("nothing is copied where all is the CPU's memory")
    assert_copies_are_hidden(device, width=2048, num_rows=8192)


def assert_copies_are_hidden(device, *, width, num_rows):
    """Check that offloading, overlapped with compute, adds at most `HIDDEN_SHARE` of its copies' time to a step."""
    blocks = [nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)) for _ in range(LAYERS)]
    model = nn.Sequential(*blocks).to(device)
    for block in model:
        set_activation_checkpointing(block)
    inputs = torch.randn(num_rows, width, device=device, requires_grad=True)

    def step():
        model.zero_grad()
        model(inputs).square().mean().backward()

    offloader = Offloader(horizon=2)
    kept_s = median_s(step)
    use_offloader(offloader)
    offloaded_s = median_s(step)
    before = offloader.counts.offloaded_bytes
    step()
    num_bytes = offloader.counts.offloaded_bytes - before
    use_offloader(None)
    offloader.close()
    assert num_bytes >= (LAYERS - 1) * num_rows * width * 4, num_bytes
    there = torch.empty(num_bytes, dtype=torch.uint8, device=device)
    here = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def copy_both_ways():
        here.copy_(there, non_blocking=True)
        there.copy_(here, non_blocking=True)

    copies_s = median_s(copy_both_ways)
    longer_s = offloaded_s - kept_s
    told = (
        f"{kept_s:.4f} s kept, {offloaded_s:.4f} s offloaded, {copies_s:.4f} s for {num_bytes} bytes out and in alone"
    )
    assert longer_s <= HIDDEN_SHARE * copies_s, told


def median_s(step, *, warm=3, times=9):
    found = []
    for number in range(warm + times):
        torch.cuda.synchronize()
        began_s = time.perf_counter()
        step()
        torch.cuda.synchronize()
        if number >= warm:
            found.append(time.perf_counter() - began_s)
    return sorted(found)[len(found) // 2]


def test_a_snapshot_holds_what_the_gpu_held(rank, size):
    device = gpu()
    flat = {"weight": rows(device), "half": rows(device).to(torch.bfloat16), "=step": 7}
    expected = {name: one.clone() for name, one in flat.items() if isinstance(one, torch.Tensor)}
    plan = agree_on_plan(Ranks(), flat)
    snapshot = Snapshot()
    for number in range(2):
        snapshot.take(plan, flat, save="s", step=number, rank=0, num_parts=1)
    for one in flat.values():  # training continues at once
        if isinstance(one, torch.Tensor):
            one.zero_()
    for planned in plan.tensors:
        stretch = snapshot.tensors[planned.start : planned.start + planned.num_bytes]
        held = stretch.view(planned.dtype).view(planned.shape)
        assert torch.equal(held, expected[planned.key[0]].cpu()), planned.key
    if not IS_REHEARSAL:
        assert plan.uses_cuda
        assert snapshot.tensors.is_pinned()


def test_amp_trains(rank, size):
    device = gpu()
    for dtype in (torch.bfloat16, torch.float16):
        model = nn.parallel.DistributedDataParallel(Deep().to(device))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cuda", enabled=dtype is torch.float16)
        losses = []
        for _ in range(6):
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=dtype):
                hidden = model(rows(device))
            loss = hidden.float().square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
        assert losses[-1] < losses[0], (dtype, losses)


def test_a_compiled_model_trains(rank, size):
    device = gpu()
    torch.manual_seed(1)
    plain = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.LayerNorm(WIDTH)).to(device)
    wrapped = nn.parallel.DistributedDataParallel(plain)
    outputs = []
    for model in (wrapped, torch.compile(wrapped)):
        wrapped.zero_grad()
        loss = model(rows(device)).square().mean()
        loss.backward()
        outputs.append([loss.detach().clone(), *(one.grad.clone() for one in wrapped.parameters())])
    for ours, theirs in zip(*outputs, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def needs_driver():
    if shutil.which("nvidia-smi") is None:
        raise Absent("needs NVIDIA's driver: nvidia-smi is not here")


def test_health_checks_judge_the_gpu(rank, size):
    needs_driver()
    plan = SimpleNamespace(environment=SimpleNamespace(python=sys.executable))
    host = SimpleNamespace(name="algo-1", resources=SimpleNamespace(gpu_indices=(0,)))
    finding = check_gpus(plan, host, computes=True)
    assert finding.state is FindingState.OK, finding
    assert finding.words.startswith("1 x "), finding


def test_errors_of_the_driver_can_be_read(rank, size):
    needs_driver()
    if not Path("/proc/driver/nvidia/gpus").is_dir():
        raise Absent("/proc/driver/nvidia/gpus is not here: the driver does not say the buses of its GPUs")
    log = XidLog((0,), clock=SystemClock())
    try:
        if not log.is_open:
            raise Absent("the kernel's log /dev/kmsg cannot be read here")
        log.look()
        assert log.errors() == (), "the driver told of an error while this test ran"
        assert log.last_code(0) == 0
        assert log._buses, "no GPU has a bus by which an Xid could name it"
    finally:
        log.close()


def test_the_gpu_is_measured(rank, size):
    needs_driver()
    source = GpuSource((0,), interval_s=0.5, xids=XidLog((0,), clock=SystemClock()))
    values, end_s = {}, time.monotonic() + FIGURES_S
    try:
        while len(values) < 3 and time.monotonic() < end_s:
            time.sleep(0.2)
            values = source.read(time.monotonic())
    finally:
        source.close()
    assert len(values) >= 3, values
    assert all(name.startswith("gpu-0/") for name in values), values
