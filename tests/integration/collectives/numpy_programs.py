"""Programs of one rank over the NumPy adapter, run by `test_numpy_adapter` in the training environment.

The scenario is the first argument; the last line of output is the result, as JSON.
"""

import json
import sys

import numpy as np

from clary.train.collective.adapters.numpy import init


def collectives(comm):
    """Call every method with several shapes and types, and check the results."""
    rank, size = comm.rank, comm.size
    ranks = np.arange(size)
    mine = np.arange(6, dtype=np.float32).reshape(2, 3) + rank
    kept = mine.copy()
    total = comm.all_reduce(mine)
    check("all_reduce", total, sum(np.arange(6, dtype=np.float32).reshape(2, 3) + r for r in range(size)))
    check("input is untouched", mine, kept)
    in_place = mine.copy()
    assert comm.all_reduce(in_place, op="max", out=in_place) is in_place
    check("in place", in_place, kept + (size - 1 - rank))
    check("half", comm.all_reduce(np.full(5, rank, np.float16)), np.full(5, ranks.sum(), np.float16))
    check("bool", comm.all_reduce(np.array([rank == 0, False])), np.array([True, False]))
    check("allgather", comm.allgather(mine)[:, 0, 0], ranks.astype(np.float32))
    check("scalars", comm.allgather(np.array(rank)), ranks)
    rows = np.arange(2 * size * 3).reshape(2 * size, 3)
    check("reduce_scatter", comm.reduce_scatter(rows), size * rows[2 * rank : 2 * rank + 2])
    check("alltoall", comm.alltoall(ranks * 10 + rank), ranks + rank * 10)
    sent = [(rank + to) % 3 for to in range(size)]
    received = [(of + rank) % 3 for of in range(size)]
    table = np.full((sum(sent), 2), rank)
    check("alltoallv", comm.alltoallv(table, sent, received)[:, 0], np.repeat(ranks, received))
    shared = np.array([rank, rank])
    assert comm.bcast(shared, root=size - 1) is shared
    check("bcast", shared, np.full(2, size - 1))
    gathered = comm.gather(mine, root=0)
    assert (gathered is None) == (rank != 0)
    if gathered is not None:
        check("gather", gathered[:, 1, 2], ranks.astype(np.float32) + 5)
    table = np.arange(size * 4.0).reshape(size, 4) if rank == 0 else None
    check("scatter", comm.scatter(table, np.empty(4)), np.arange(4.0) + 4 * rank)
    after, before = (rank + 1) % size, (rank - 1) % size
    if size > 1:
        work = comm.isend(np.full(100_000, rank), after, tag=3)
        passed = np.empty(100_000, dtype=np.int64)
        assert comm.recv(passed, before, tag=3) == before
        work.wait()
        check("ring", passed, np.full(100_000, before))
    part = comm.split(rank % 2, key=-rank)
    mates = [other for other in reversed(range(size)) if other % 2 == rank % 2]
    check("split", part.allgather(np.array(rank)), np.array(mates))
    part.close()
    assert (comm.split(None if rank == 0 else 1) is None) == (rank == 0)
    comm.barrier()
    return {"rank": rank, "size": size}


def refusals(comm):
    """Return the refused calls, each with the first words of its error."""
    good = np.zeros(4, np.float32)
    frozen = good.copy()
    frozen.flags.writeable = False
    calls = {
        "list": lambda: comm.all_reduce([1.0]),
        "strided": lambda: comm.all_reduce(np.zeros((4, 4))[:, ::2]),
        "fortran": lambda: comm.all_reduce(np.asfortranarray(np.zeros((4, 4)))),
        "unsigned": lambda: comm.all_reduce(np.zeros(4, np.uint32)),
        "big endian": lambda: comm.all_reduce(np.zeros(4, ">f4")),
        "complex": lambda: comm.all_reduce(np.zeros(4, np.complex64)),
        "read only": lambda: comm.bcast(frozen, root=1 - comm.rank),
        "other type": lambda: comm.all_reduce(good, out=np.zeros(4)),
        "other length": lambda: comm.all_reduce(good, out=np.zeros(5, np.float32)),
        "list as out": lambda: comm.all_reduce(good, out=[0.0] * 4),
        "list to gather": lambda: comm.allgather([0.0]),
        "other shape": lambda: comm.allgather(good, out=np.zeros((4, 2), np.float32)),
        "axis": lambda: comm.reduce_scatter(np.zeros(comm.size + 1)),
        "rows": lambda: comm.alltoallv(np.zeros(3), [1, 1], [1, 1]),
        "scatter": lambda: comm.scatter(np.zeros((comm.size, 5)), np.zeros(4), root=comm.rank),
    }
    found = {}
    for name, call in calls.items():
        try:
            call()
        except (TypeError, ValueError) as error:
            found[name] = f"{type(error).__name__}: {error}"
    comm.barrier()
    return found


def check(name, found, expected):
    if found.shape != expected.shape or found.dtype != expected.dtype or not np.array_equal(found, expected):
        raise AssertionError(f"{name}: {found!r}, expected {expected!r}")


def main():
    with init() as comm:
        print(json.dumps({"collectives": collectives, "refusals": refusals}[sys.argv[1]](comm)), flush=True)


main()
