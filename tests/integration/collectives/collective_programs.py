"""Programs of one rank, run by `test_rank_processes` with the plain interpreter: standard library only.

The scenario is the first argument. Lines of output are JSON; the last one is the result.
"""

import json
import os
import sys
import time

from clary.train._native.errors import CollectiveError
from clary.train.collective.bootstrap.tcp_store import TcpStore
from clary.train.collective.communicator import open_group
from clary.train.collective.settings import CollectiveSettings

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def say(**facts):
    print(json.dumps(facts), flush=True)


def reduce(group):
    """Reduce twice over all ranks, and once in a subgroup."""
    memory = bytearray([RANK + 1]) * 100_000
    group.all_reduce(memory)
    group.all_reduce(memory, op="max")
    rest = group.subgroup([rank for rank in range(SIZE) if rank % 2 == RANK % 2])
    with rest:
        one = bytearray([1])
        rest.all_reduce(one)
    say(total=memory[0], whole=memory.count(memory[0]) == len(memory), mates=one[0])


def wait_for_end(group):
    """Reduce until a peer fails; report the error and the seconds since the last good reduction."""
    say(pid=os.getpid())
    memory = bytearray(1000)
    last_s = time.monotonic()
    try:
        while True:
            group.all_reduce(memory)
            last_s = time.monotonic()
    except CollectiveError as error:
        say(
            error=type(error).__name__,
            culprit=error.culprit,
            words=str(error),
            noticed_s=time.monotonic() - last_s,
        )


def idle(group):
    """Wait until the test writes a line, then run one barrier."""
    say(pid=os.getpid())
    sys.stdin.readline()
    try:
        group.barrier()
        say(error="")
    except CollectiveError as error:
        say(error=type(error).__name__, culprit=error.culprit, words=str(error))


def main():
    settings = CollectiveSettings.from_environment(os.environ)
    port = int(os.environ["MASTER_PORT"])
    store = TcpStore(
        settings.master_address, port, rank=RANK, secret=settings.secret, timeout_s=settings.connect_timeout_s
    )
    group = open_group(store, rank=RANK, size=SIZE, settings=settings)
    try:
        {"reduce": reduce, "wait_for_end": wait_for_end, "idle": idle}[sys.argv[1]](group)
    finally:
        group.close()
        store.close()


main()
