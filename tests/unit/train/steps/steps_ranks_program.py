"""Two ranks whose steps are recorded; `test_steps_ranks` runs it where torch is."""

import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

from clary.contract.step_records import FOLDER_VARIABLE, HEADER_BYTES, read_rows

DISTRIBUTED = """
    import os, sys, time
    import torch, torch.distributed as dist
    from clary.train.steps import torch_hooks
    torch_hooks.install()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=int(sys.argv[2]), world_size=2)
    rank = dist.get_rank()
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(6):
        loss = net(torch.ones(2, 3)).sum()
        if rank == 1:
            time.sleep(0.3)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    for _ in range(6):
        if rank == 1:
            time.sleep(0.3)
        dist.all_reduce(torch.ones(4))
        optimizer.step()
    dist.barrier()
    os._exit(0)
"""


def test_a_wait_for_another_rank_is_communication_in_ddp_and_in_plain_collectives():
    with tempfile.TemporaryDirectory(prefix="clary-steps-") as folder:
        environment = {**os.environ, FOLDER_VARIABLE: folder}
        command = [sys.executable, "-c", textwrap.dedent(DISTRIBUTED), f"{folder}/meet"]
        ranks = [subprocess.Popen([*command, str(rank)], env=environment) for rank in range(2)]
        try:
            assert [rank.wait(45) for rank in ranks] == [0, 0]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
        files = [Path(folder, f"{number}-{rank.pid}.steps") for number, rank in enumerate(ranks)]
        waiting, slow = (read_rows(file.read_bytes()[HEADER_BYTES:]) for file in files)
    assert len(waiting) == len(slow) == 12
    for part in (slice(1, 6), slice(6, 12)):  # DDP, then all_reduce
        waits_s, is_waited_for_s = (sum(row.communication_s for row in rows[part]) for rows in (waiting, slow))
        assert waits_s > 2 * is_waited_for_s
        assert waits_s > sum(row.backward_s for row in waiting[part])
    assert all(row.forward_s > 0.25 for row in slow[:6])
