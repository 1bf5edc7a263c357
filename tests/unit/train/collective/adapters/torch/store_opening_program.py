"""A rank waits until the store of rank 0 listens; each test starts ranks as processes."""

import os
import socket
import subprocess
import sys
import time
import types
from datetime import timedelta

import torch.distributed  # noqa: F401 - brings the module that is wrapped

from clary.train.collective.adapters.torch import store_opening

RANK = """
import os, sys, time
import torch.distributed as dist
from clary.train.collective.adapters.torch import store_opening
if {waits}:
    store_opening.install()
print("ready", flush=True)
sys.stdin.readline()
time.sleep({late_s})
began = time.monotonic()
dist.init_process_group("gloo")
print(time.monotonic() - began, flush=True)
os._exit(0)
"""
LATE_S = 0.08


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def seconds_of_rank_one(*, waits):
    """Return how long rank 1 takes to join, where rank 0 opens its store LATE_S later than rank 1 asks for it."""
    port = free_port()
    ranks = []
    for rank in range(2):
        variables = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        script = RANK.format(waits=waits, late_s=0 if rank else LATE_S)
        ranks.append(
            subprocess.Popen(
                [sys.executable, "-c", script],
                env={**os.environ, **variables, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    try:
        for rank in ranks:
            assert rank.stdout.readline() == "ready\n"
        for rank in ranks:
            rank.stdin.write("\n")
            rank.stdin.flush()
        return [float(rank.stdout.readline()) for rank in ranks][1]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait(10)


def test_a_rank_that_asks_early_joins_as_soon_as_the_store_listens():
    without = min(seconds_of_rank_one(waits=False) for _ in range(2))
    with_wait = min(seconds_of_rank_one(waits=True) for _ in range(2))
    assert with_wait < without, f"{with_wait:.3f} s with the wait, {without:.3f} s as torch does it"
    assert without > 0.4, f"torch tries again after {without:.3f} s now: the wait may be of no use any more"


def test_the_wait_ends_at_its_limit_and_says_that_nothing_listens():
    began_s = time.monotonic()
    assert not store_opening.wait_until_open("127.0.0.1", free_port(), limit_s=0.2)
    assert not store_opening.wait_until_open("127.0.0.1", 0)
    assert time.monotonic() - began_s < 5


def test_rank_0_does_not_wait_and_others_no_longer_than_their_timeout():
    waited = []
    module = types.ModuleType(store_opening._MODULE)
    module._create_c10d_store = lambda hostname, port, rank, *rest: (hostname, port, rank, *rest)
    real, real_wait = sys.modules[store_opening._MODULE], store_opening.wait_until_open
    sys.modules[store_opening._MODULE] = module
    store_opening.wait_until_open = lambda *place, limit_s: waited.append((*place, limit_s))
    try:
        store_opening.install()
        store_opening.install()
        module._create_c10d_store("host", 7, 0, 2, timedelta(seconds=5))
        made = module._create_c10d_store("host", 7, 1, 2, timedelta(seconds=5))
        module._create_c10d_store("host", 7, 1, 2, timedelta(seconds=5000))
    finally:
        sys.modules[store_opening._MODULE], store_opening.wait_until_open = real, real_wait
    assert made == ("host", 7, 1, 2, timedelta(seconds=5))
    assert waited == [("host", 7, 5.0), ("host", 7, store_opening.LIMIT_S)]


def test_a_torch_without_the_function_stays_as_it_is():
    module, real = types.ModuleType(store_opening._MODULE), sys.modules[store_opening._MODULE]
    sys.modules[store_opening._MODULE] = module
    try:
        store_opening.install()
    finally:
        sys.modules[store_opening._MODULE] = real
    assert not hasattr(module, store_opening._FUNCTION)
