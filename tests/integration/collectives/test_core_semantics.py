"""Behaviour of every core, reference and compiled: results, order, timeouts and lost peers.

Ranks are threads here and processes in `test_rank_processes`. All sums are exact, so that their bits do not depend on
which ranks share a host.
"""

import array
import struct
import threading
import time
from dataclasses import replace

import pytest
from collective_groups import CORES, FAST, MemoryStore, open_descriptors, run_group, run_ranks

from clary.train._native import core as native
from clary.train._native.errors import CollectiveTimeout, GroupClosed, OrderMismatch, PeerLost
from clary.train._native.interface import Dtype, ReduceOp
from clary.train._native.reference_math import expected_all_reduce, expected_all_to_all, expected_reduce_scatter
from clary.train.collective.communicator import open_group

LAYOUTS = [(1, 1), (2, 1), (2, 2), (3, 2), (4, 2)]  # (ranks, hosts)
SMALL_NUMBERS = {  # type -> struct format; one number per rank and element, exact in each type
    Dtype.FLOAT32: "f",
    Dtype.FLOAT64: "d",
    Dtype.FLOAT16: "e",
    Dtype.INT8: "b",
    Dtype.INT16: "h",
    Dtype.INT32: "i",
    Dtype.INT64: "q",
    Dtype.UINT8: "B",
}
BY_CTYPES = "native by ctypes"
pytestmark = pytest.mark.parametrize(
    "core",
    [
        *CORES,
        pytest.param(
            BY_CTYPES,
            marks=pytest.mark.skipif(native.door() is None, reason="_door was not built: native is by ctypes"),
        ),
    ],
)


@pytest.fixture(autouse=True)
def _without_door(core, monkeypatch):
    if core == BY_CTYPES:
        monkeypatch.setattr(native, "door", lambda: None)
        native._calls.cache_clear()
        yield
        native._calls.cache_clear()
    else:
        yield


def with_core(core, **changes):
    return replace(FAST, core=core.removesuffix(" by ctypes"), **changes)


def values_of(rank, dtype, count):
    numbers = [(rank + 1) * (place % 5 + 1) % 7 for place in range(count)]
    if dtype is Dtype.BOOL:
        return bytes(number % 2 for number in numbers)
    if dtype is Dtype.BFLOAT16:
        return b"".join(struct.pack("<f", number)[2:] for number in numbers)
    return struct.pack(f"{count}{SMALL_NUMBERS[dtype]}", *numbers)


@pytest.mark.parametrize(("size", "num_hosts"), LAYOUTS)
def test_every_type_is_reduced_by_every_operation_that_is_defined_on_it(core, size, num_hosts):
    cases = [(dtype, op, 37) for dtype in Dtype for op in ReduceOp if op.is_defined_on(dtype)]
    cases = [case for case in cases if case[1] is not ReduceOp.AVG or size != 3]  # division by 3 rounds
    cases += [(Dtype.FLOAT32, ReduceOp.SUM, count) for count in (0, 1, 5000)]

    def act(group):
        results = []
        for dtype, op, count in cases:
            memory = bytearray(values_of(group.rank, dtype, count))
            group.all_reduce(memory, op=op, dtype=dtype)
            results.append(bytes(memory))
        return results

    outcomes = run_group(size, act, num_hosts=num_hosts, settings=with_core(core))
    for place, (dtype, op, count) in enumerate(cases):
        expected = expected_all_reduce([values_of(rank, dtype, count) for rank in range(size)], dtype, op)
        for rank in range(size):
            assert outcomes[rank][place] == expected, (dtype, op, count, rank)


@pytest.mark.parametrize("code", "fdbBhilq")
def test_objects_of_every_plain_buffer_format_are_summed_in_place(core, code):
    def act(group):
        numbers = array.array(code, [group.rank + 1, 2, 3])
        work = group.all_reduce(numbers)
        assert work.wait()
        return numbers.tolist()

    assert run_group(3, act, settings=with_core(core)) == [[6, 6, 9]] * 3


@pytest.mark.parametrize(
    ("memory", "error", "words"),
    [
        (b"read only", ValueError, "read-only"),
        (memoryview(bytearray(8))[::2], ValueError, "strided"),
        (array.array("H", [1]), TypeError, "format 'H'"),
        (5, TypeError, "no buffer"),
    ],
)
def test_memory_that_is_not_contiguous_is_refused_before_any_transfer(core, memory, error, words):
    def act(group):
        with pytest.raises(error, match=words):
            group.all_reduce(memory)
        group.barrier()
        return group.size

    assert run_group(2, act, settings=with_core(core)) == [2, 2]


@pytest.mark.parametrize("count", [0, 1, 3001])
@pytest.mark.parametrize(("size", "num_hosts"), LAYOUTS)
def test_every_collective_returns_the_documented_result(core, size, num_hosts, count):
    dtype, root = Dtype.INT32, size - 1
    inputs = [values_of(rank, dtype, count * size) for rank in range(size)]
    ones = [values_of(rank, dtype, count) for rank in range(size)]

    def act(group):
        rank, one = group.rank, ones[group.rank]
        whole, part = bytearray(4 * count * size), bytearray(4 * count)
        parts = [bytearray(4 * count) for _ in range(size)]
        found = {}
        group.all_gather(one, whole, dtype=dtype)
        found["all_gather"] = bytes(whole)
        group.all_gather(one, parts, dtype=dtype)
        found["all_gather to parts"] = b"".join(parts)
        group.reduce_scatter(inputs[rank], part, dtype=dtype)
        found["reduce_scatter"] = bytes(part)
        group.reduce_scatter([inputs[rank][4 * count * r :][: 4 * count] for r in range(size)], part, dtype=dtype)
        found["reduce_scatter of parts"] = bytes(part)
        buffer = bytearray(one)
        group.broadcast(buffer, root=root)
        found["broadcast"] = bytes(buffer)
        buffer = bytearray(one)
        group.reduce(one, buffer if rank == root else None, root=root, dtype=dtype)
        found["reduce"] = bytes(buffer)
        group.all_to_all(inputs[rank], whole, dtype=dtype)
        found["all_to_all"] = bytes(whole)
        group.gather(one, whole if rank == root else None, root=root, dtype=dtype)
        found["gather"] = bytes(whole) if rank == root else None
        group.scatter(inputs[rank] if rank == root else None, part, root=root, dtype=dtype)
        found["scatter"] = bytes(part)
        group.barrier()
        return found

    outcomes = run_group(size, act, num_hosts=num_hosts, settings=with_core(core))
    gathered, total = b"".join(ones), expected_all_reduce(ones, dtype, ReduceOp.SUM)
    scattered = expected_reduce_scatter(inputs, dtype, ReduceOp.SUM)
    exchanged = expected_all_to_all(inputs)
    for rank, found in enumerate(outcomes):
        assert found["all_gather"] == found["all_gather to parts"] == gathered
        assert found["reduce_scatter"] == found["reduce_scatter of parts"] == scattered[rank]
        assert found["broadcast"] == ones[root]
        assert found["reduce"] == (total if rank == root else ones[rank])
        assert found["all_to_all"] == exchanged[rank]
        assert found["gather"] == (gathered if rank == root else None)
        assert found["scatter"] == inputs[root][4 * count * rank : 4 * count * (rank + 1)]


@pytest.mark.parametrize(("size", "num_hosts"), [(2, 1), (3, 2), (4, 2)])
def test_all_to_all_accepts_a_different_count_for_every_pair(core, size, num_hosts):
    def count(sender, receiver):
        return (sender * 3 + receiver) % 4 * 100

    def act(group):
        rank = group.rank
        sent = b"".join(bytes([10 * rank + to]) * count(rank, to) for to in range(size))
        received = bytearray(sum(count(of, rank) for of in range(size)))
        group.all_to_all(
            sent,
            received,
            send_counts=[count(rank, to) for to in range(size)],
            receive_counts=[count(of, rank) for of in range(size)],
        )
        return bytes(received)

    for rank, received in enumerate(run_group(size, act, num_hosts=num_hosts, settings=with_core(core))):
        assert received == b"".join(bytes([10 * of + rank]) * count(of, rank) for of in range(size))


@pytest.mark.parametrize(("size", "num_hosts"), [(2, 1), (3, 2)])
def test_asynchronous_operations_run_in_the_order_of_their_calls(core, size, num_hosts):
    def act(group):
        memories = [bytearray(bytes([group.rank + place])) * 50_000 for place in range(20)]
        works = [group.all_reduce(memory, op="sum", asynchronous=True) for memory in memories]
        for work in reversed(works):
            assert work.wait()
        return [memory[0] for memory in memories]

    expected = [sum(rank + place for rank in range(size)) % 256 for place in range(20)]
    assert run_group(size, act, num_hosts=num_hosts, settings=with_core(core)) == [expected] * size


def test_results_are_equal_in_every_run(core):
    def act(group):
        memory = bytearray(struct.pack("2000f", *((0.1 + group.rank) * place for place in range(2000))))
        group.all_reduce(memory, dtype=Dtype.FLOAT32)
        return bytes(memory)

    runs = [run_group(4, act, num_hosts=2, settings=with_core(core)) for _ in range(3)]
    assert len({result for run in runs for result in run}) == 1


@pytest.mark.parametrize("num_hosts", [1, 2])
@pytest.mark.parametrize("num_bytes", [0, 10, 1_000_000])
def test_messages_arrive_by_peer_and_tag_in_order(core, num_hosts, num_bytes):
    def act(group):
        other = 1 - group.rank
        sent = [bytes([group.rank * 16 + place]) * num_bytes for place in range(3)]
        works = [group.send(data, other, tag=tag) for data, tag in zip(sent, (5, 5, 6), strict=True)]
        found = []
        for tag in (6, 5, 5):
            memory = bytearray(num_bytes)
            work = group.receive(memory, other, tag=tag)
            assert work.wait()
            assert work.source == other
            found.append(bytes(memory))
        for work in works:
            assert work.wait()
        return found

    for rank, found in enumerate(run_group(2, act, num_hosts=num_hosts, settings=with_core(core))):
        assert found == [bytes([(1 - rank) * 16 + place]) * num_bytes for place in (2, 0, 1)]


def test_a_receive_from_any_rank_returns_the_sender(core):
    def act(group):
        if group.rank:
            group.send(bytes([group.rank]), 0, tag=9).wait()
            return None
        found = {}
        for _ in range(2):
            memory = bytearray(1)
            work = group.receive(memory, tag=9)
            work.wait()
            found[work.source] = memory[0]
        return found

    assert run_group(3, act, num_hosts=2, settings=with_core(core))[0] == {1: 1, 2: 2}


def test_a_receive_of_a_wrong_size_is_a_bad_argument_and_the_group_stays_usable(core):
    def act(group):
        if group.rank == 0:
            group.send(b"four", 1).wait()
        else:
            with pytest.raises(ValueError, match=r"4\b.*\b8\b|8\b.*\b4\b"):
                group.receive(bytearray(8), 0).wait()
        group.barrier()
        return True

    assert run_group(2, act, settings=with_core(core)) == [True, True]


@pytest.mark.parametrize("num_hosts", [1, 2])
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda group: group.all_reduce(bytearray(8)), lambda group: group.broadcast(bytearray(8))),
        (lambda group: group.all_reduce(bytearray(8)), lambda group: group.all_reduce(bytearray(16))),
        (lambda group: group.all_reduce(bytearray(8)), lambda group: group.all_reduce(bytearray(8), op="max")),
        (lambda group: group.broadcast(bytearray(8), root=0), lambda group: group.broadcast(bytearray(8), root=1)),
    ],
)
def test_ranks_that_call_different_collectives_both_raise(core, num_hosts, first, second):
    def call(group):
        (first if group.rank == 0 else second)(group)
        group.barrier()  # two roots that only send find the mismatch here at the latest

    def act(group):
        with pytest.raises(OrderMismatch) as mismatch:
            call(group)
        with pytest.raises(OrderMismatch):
            group.barrier()
        return str(mismatch.value)

    for words in run_group(2, act, num_hosts=num_hosts, settings=with_core(core)):
        assert "rank 0" in words
        assert "rank 1" in words


@pytest.mark.parametrize("num_hosts", [1, 2])
@pytest.mark.long
def test_a_rank_missing_from_an_operation_is_named_at_the_timeout(core, num_hosts):
    store = MemoryStore()

    def act(rank):
        settings = with_core(core, host=f"h{rank * num_hosts // 2}")
        with open_group(store, rank=rank, size=2, settings=settings) as group:
            if rank == 1:
                time.sleep(3.0)
                return None
            start_s = time.monotonic()
            with pytest.raises(CollectiveTimeout) as limit:
                group.all_reduce(bytearray(8), timeout_s=0.5)
            assert 0.4 < time.monotonic() - start_s < 2.9
            with pytest.raises(CollectiveTimeout):
                group.barrier()
            return limit.value

    outcome, other = run_ranks(2, act)
    assert not isinstance(other, Exception), other
    assert outcome.culprit == 1
    assert "all_reduce" in str(outcome)
    assert "rank 1" in str(outcome)


def test_an_abort_ends_the_waits_of_other_ranks_with_its_reason(core):
    def act(rank):
        group = open_group(store, rank=rank, size=3, settings=with_core(core, host=f"h{rank // 2}"))
        try:
            if rank == 1:
                time.sleep(0.3)
                group.abort("the optimizer has diverged")
                with pytest.raises(GroupClosed, match="diverged"):
                    group.barrier()
                return None
            start_s = time.monotonic()
            with pytest.raises(GroupClosed, match="diverged") as told:
                group.barrier()
            assert time.monotonic() - start_s < 5
            return told.value.culprit
        finally:
            group.close()

    store = MemoryStore()
    assert run_ranks(3, act) == [1, None, 1]


def test_an_exception_on_one_rank_ends_the_other_ranks_at_once(core):
    store = MemoryStore()

    def act(rank):
        start_s = time.monotonic()
        with open_group(store, rank=rank, size=2, settings=with_core(core)) as group:
            if rank == 1:
                raise ZeroDivisionError("in the model")
            try:
                group.barrier()
            finally:
                assert time.monotonic() - start_s < 5

    first, second = run_ranks(2, act)
    assert isinstance(second, ZeroDivisionError)
    assert "ZeroDivisionError: in the model" in str(first)


def test_only_operations_that_need_a_closed_rank_fail(core):
    store = MemoryStore()
    both = threading.Barrier(2)  # the first failed barrier would end the group for the slower rank

    def act(rank):
        with open_group(store, rank=rank, size=3, settings=with_core(core)) as group:
            group.barrier()
            if rank == 2:
                return None
            memory = bytearray([rank])
            time.sleep(0.5)
            if rank == 0:
                group.send(memory, 1).wait()
            else:
                group.receive(memory, 0).wait()
                assert memory == b"\0"
            both.wait(10)
            start_s = time.monotonic()
            with pytest.raises(PeerLost) as lost:
                group.barrier()
            assert time.monotonic() - start_s < 5
            return lost.value.culprit

    assert run_ranks(3, act) == [2, 2, None]


def test_pending_works_fail_when_the_group_is_closed(core):
    store = MemoryStore()

    def act(rank):
        group = open_group(store, rank=rank, size=2, settings=with_core(core))
        if rank == 1:
            time.sleep(0.5)
            group.close()
            return
        work = group.all_reduce(bytearray(8), asynchronous=True)
        assert not work.wait(0.05)
        group.close()
        with pytest.raises((GroupClosed, PeerLost)):
            work.wait()
        assert work.is_done()

    for outcome in run_ranks(2, act):
        assert outcome is None


def test_subgroups_number_ranks_as_listed_and_are_independent(core):
    def act(group):
        pair = group.subgroup([3, 0] if group.rank in (0, 3) else [1, 2])
        none = group.subgroup([2])
        with pair:
            gathered = bytearray(2)
            pair.all_gather(bytes([group.rank]), gathered)
        if none is not None:
            none.close()
        group.barrier()
        return pair.rank, list(gathered), none is not None

    outcomes = run_group(4, act, num_hosts=2, settings=with_core(core))
    assert outcomes == [
        (1, [3, 0], False),
        (0, [1, 2], False),
        (1, [1, 2], True),
        (0, [3, 0], False),
    ]


def test_a_closed_group_leaves_no_descriptor_open(core):
    run_group(2, lambda group: group.barrier() and None, num_hosts=2, settings=with_core(core))
    before = open_descriptors()
    for num_hosts in (1, 2):
        run_group(3, lambda group: group.barrier() and None, num_hosts=num_hosts, settings=with_core(core))
    assert open_descriptors().keys() == before.keys()


def test_counters_count_operations_and_bytes(core):
    def act(group):
        for _ in range(3):
            group.all_reduce(bytearray(1000))
        return group.core.counters(), group.core.explain(0, 1000)

    for counters, explanation in run_group(2, act, num_hosts=2, settings=with_core(core)):
        assert counters["operations"] == 3
        assert counters["lane_bytes_sent"] > 0
        assert counters["lane_bytes_received"] > 0
        assert explanation
