"""One of eight ranks on two hosts: the traffic between hosts of a transformer in pipelines and tensor groups.

    python smp_eight_hosts_program.py PLACEMENT FILE     rank and size from RANK, WORLD_SIZE and so on

Trains with short sequences, then with long ones, and writes to FILE, as JSON, the bytes that the host's eth0 has sent
for each.
"""

import json
import sys
from pathlib import Path

import smdistributed.modelparallel.torch as smp
import torch
from smp_eight_models import Sizes, distributed_gpt
from torch.nn import functional

SHORT, LONG, NUM_ROWS, NUM_STEPS = 8, 128, 8, 2
SIZES = Sizes(layers=2, heads=4, hidden=32, words=64, positions=LONG)
_SENT_BYTES = 8  # column of /proc/net/dev after the interface name


@smp.step
def train_step(model, ids):
    logits = model((ids, None, None, None))
    loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    model.backward(loss)
    return loss


def sent_bytes() -> int:
    """Return the number of bytes that this host's eth0 has sent so far."""
    for line in Path("/proc/thread-self/net/dev").read_text(encoding="ascii").splitlines():
        name, _, columns = line.partition(":")
        if name.strip() == "eth0":
            return int(columns.split()[_SENT_BYTES])
    raise RuntimeError("this host has no eth0")


def main() -> None:
    placement, file = sys.argv[1:]
    torch.set_num_threads(1)
    smp.init(
        {
            "ddp": True,
            "partitions": 2,
            "tensor_parallel_degree": 2,
            "prescaled_batch": True,
            "microbatches": 2,
            "placement_strategy": placement,
        }
    )
    model = smp.DistributedModel(distributed_gpt(SIZES))
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))

    def sent_by_steps(length: int) -> int:
        generator = torch.Generator().manual_seed(smp.rdp_rank())
        smp.barrier()
        before = sent_bytes()
        smp.barrier()
        for _ in range(NUM_STEPS):
            optimizer.zero_grad()
            train_step(model, torch.randint(0, SIZES.words, (NUM_ROWS, length), generator=generator))
            optimizer.step()
        smp.barrier()
        found = sent_bytes() - before
        smp.barrier()
        return found

    sent_by_steps(SHORT)  # assigns modules to ranks and connects them
    facts = {
        "short": sent_by_steps(SHORT),
        "long": sent_by_steps(LONG),
        "pp": smp.get_pp_group(),
        "tp": smp.get_tp_group(),
        "rdp": smp.get_rdp_group(),
        "owners": sorted(set(model.owners.values())),
        "gradient_bytes": NUM_STEPS * sum(4 * one.numel() for one in model.local_parameters()),
        # The additional bytes of activations that one pipeline rank sends to the next, in one direction, for the long
        # sequences.
        "more_bytes": NUM_STEPS * NUM_ROWS * (LONG - SHORT) * 4 * SIZES.hidden,
    }
    Path(file).write_text(json.dumps(facts), encoding="utf-8")
    smp.barrier()


if __name__ == "__main__":
    main()
