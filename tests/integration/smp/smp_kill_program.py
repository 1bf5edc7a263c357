"""One of two pipeline ranks is killed in a step; the survivor reports its own work at that time. See test_smp_kills.

CLARY_TEST_KILL is `rank pass microbatch`, such as `1 backward 2`.
"""

import os
import signal
import time

import smdistributed.modelparallel.torch as smp
import torch
from smdistributed.modelparallel.torch.exceptions import RankLost


class Marked(torch.nn.Module):
    """Kills its process when the marked microbatch passes."""

    def __init__(self, victim_pass):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))
        self.victim_pass = victim_pass

    def forward(self, x):
        is_marked = float(x[0, 0]) == 1.0
        if is_marked and self.victim_pass == "forward":
            os.kill(os.getpid(), signal.SIGKILL)
        result = x * self.weight
        if is_marked and self.victim_pass == "backward":
            result.register_hook(lambda grad: os.kill(os.getpid(), signal.SIGKILL))
        return result


def test_the_surviving_rank_reports_its_work(rank, size):
    victim, which, number = os.environ["CLARY_TEST_KILL"].split()
    smp.init({"partitions": 2, "microbatches": 4, "auto_partition": False, "default_partition": 0})
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), Marked(which), torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    with torch.no_grad():
        module[0].weight.copy_(torch.eye(4))
        module[0].bias.zero_()
    smp.set_partition(module[1], int(victim))
    smp.set_partition(module[2], 1 - int(victim))
    model = smp.DistributedModel(module)

    @smp.step
    def run(model, x):
        loss = model(x).sum()
        model.backward(loss)
        return loss

    run(model, torch.zeros(8, 4))
    batch = torch.zeros(8, 4)
    batch[int(number) * 2] = 1.0
    began = time.monotonic()
    try:
        run(model, batch)
    except RankLost as lost:
        words = str(lost)
    else:
        raise AssertionError("the step went through")
    assert time.monotonic() - began < 10
    assert f"rank {victim} (pipeline rank {victim}) is lost" in words, words
    if rank == 0:
        assert f"waits for {which} of 1[" in words or f"{which} of [1:" in words, words
        assert f"microbatch {number}" in words, words
    else:
        assert "waits for" in words, words
