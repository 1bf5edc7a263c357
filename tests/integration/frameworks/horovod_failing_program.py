"""Program of one rank that loses a peer or waits for one; its argument names the scenario."""

import os
import signal
import sys
import time

import horovod.torch as hvd
import torch

torch.set_num_threads(1)


def killed():
    """Rank 1 is killed in a loop of steps; the other ranks must get an error."""
    for step in range(100_000):
        hvd.allreduce(torch.ones(1000), name="gradient")
        if step == 20 and hvd.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)


def leaves():
    """Rank 1 shuts down while rank 0 continues."""
    hvd.allreduce(torch.ones(4), name="together")
    if hvd.rank() == 0:
        hvd.allreduce(torch.ones(4), name="alone")


def stalls():
    """Rank 1 computes and never submits the tensor that rank 0 waits for."""
    if hvd.rank() == 0:
        hvd.allreduce(torch.ones(4), name="forgotten")
    time.sleep(60)


def forks():
    """A forked child of a rank exits without harm to the group."""
    child = os.fork()
    if child == 0:
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()


hvd.init()
print("started", flush=True)
try:
    globals()[sys.argv[1]]()
except hvd.HorovodInternalError as error:
    print(f"HorovodInternalError {error}", flush=True)
    os._exit(3)
hvd.shutdown()
print("done", flush=True)
