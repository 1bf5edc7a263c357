"""A communicator's calls to its core, its own refusals before, and the objects that it keeps alive."""

import gc
import weakref
from array import array

import pytest

from clary.train._native.errors import BootstrapError, GroupClosed, PeerLost
from clary.train._native.interface import ANY_RANK, Chunks, Dtype, Kind, Operation, ReduceOp
from clary.train.collective.communicator import Communicator
from clary.train.collective.settings import CollectiveSettings

SIZE = 3
ROOT = 1


class FakeCore:
    """Records calls; tickets end when the test says so."""

    def __init__(self):
        self.calls = []
        self.ended = set()
        self.failures = {}
        self.next_ticket = 0

    def run(self, operation):
        self.calls.append(operation)
        if not operation.asynchronous:
            return 0
        self.next_ticket += 1
        return self.next_ticket

    def is_done(self, ticket):
        return ticket in self.ended

    def wait(self, ticket, limit_s):
        if ticket not in self.ended:
            return None
        if ticket in self.failures:
            raise self.failures[ticket]
        return 2

    def abort(self, reason):
        self.calls.append(("abort", reason))

    def close(self):
        self.calls.append(("close",))
        self.ended |= set(range(self.next_ticket + 1))


class NoStore:
    """Nobody has put anything here."""

    def get(self, key, timeout_s):
        raise TimeoutError(key)


class Memory(bytearray):
    """Memory that can be watched."""


@pytest.fixture
def core():
    return FakeCore()


@pytest.fixture
def group(core):
    return Communicator(core, rank=ROOT, size=SIZE, name="g")


def floats(count):
    return array("f", range(count))


def address(memory):
    return memory.buffer_info()[0]


def test_all_reduce_names_address_count_type_and_operation(core, group):
    one, two = floats(4), floats(4)
    group.all_reduce(one, two, op="max", timeout_s=2.0)
    group.all_reduce(one)
    assert core.calls == [
        Operation(Kind.ALL_REDUCE, Dtype.FLOAT32, 4, address(one), address(two), timeout_s=2.0, reduction=ReduceOp.MAX),
        Operation(Kind.ALL_REDUCE, Dtype.FLOAT32, 4, address(one), address(one)),
    ]


def test_chunks_go_as_one_address_or_one_a_rank(core, group):
    one, whole, parts = floats(2), floats(6), [floats(2) for _ in range(SIZE)]
    group.all_gather(one, whole)
    group.all_gather(one, parts)
    group.reduce_scatter(whole, one)
    group.reduce_scatter(parts, one)
    apart = [address(part) for part in parts]
    assert [(call.source, call.target, call.chunks) for call in core.calls] == [
        (address(one), address(whole), None),
        (address(one), 0, Chunks(targets=apart)),
        (address(whole), address(one), None),
        (0, address(one), Chunks(sources=apart)),
    ]


def test_only_the_root_names_chunks(core, group):
    one, whole = floats(2), floats(6)
    group.gather(one, whole, root=ROOT)
    group.gather(one, root=0)
    group.scatter(whole, one, root=ROOT)
    group.scatter(None, one, root=0)
    group.reduce(one, root=0)
    assert [(call.kind, call.source, call.target, call.root) for call in core.calls] == [
        (Kind.GATHER, address(one), address(whole), ROOT),
        (Kind.GATHER, address(one), 0, 0),
        (Kind.SCATTER, address(whole), address(one), ROOT),
        (Kind.SCATTER, 0, address(one), 0),
        (Kind.REDUCE, address(one), 0, 0),
    ]
    assert {call.chunks for call in core.calls} == {None}


def test_all_to_all_leaves_counts_out_only_where_all_are_equal_by_themselves(core, group):
    six, three, nine = floats(6), floats(3), floats(9)
    group.all_to_all(six, array("f", six))
    group.all_to_all(six, nine, send_counts=[1, 2, 3], receive_counts=[3, 3, 3])
    group.all_to_all([three, three, three], nine)
    assert [(call.chunks.send_counts, call.chunks.receive_counts, call.count) for call in core.calls] == [
        (None, None, 2),
        ([1, 2, 3], [3, 3, 3], 1),
        ([3, 3, 3], [3, 3, 3], 3),
    ]


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda g: g.all_reduce(floats(2), floats(3)), ValueError, "target has 3 elements, expected 2"),
        (lambda g: g.all_reduce(floats(2), array("d", [1, 2])), TypeError, "float32 and float64: nothing is converted"),
        (lambda g: g.all_reduce(floats(2), op="mean"), ValueError, "op is 'mean'; expected one of sum, avg"),
        (lambda g: g.all_reduce(array("i", [1]), op="avg"), TypeError, "avg is not defined on int32"),
        (lambda g: g.all_reduce(b"abcd"), ValueError, "source is read-only"),
        (lambda g: g.all_gather(floats(2), floats(5)), ValueError, "target has 5 elements, expected 6"),
        (lambda g: g.all_gather(floats(2), [floats(2)] * 2), ValueError, "target has 2 chunks; expected one a rank, 3"),
        (lambda g: g.all_gather(floats(2), [floats(2), floats(1), floats(2)]), ValueError, r"target\[1\] has 1 elem"),
        (lambda g: g.reduce_scatter(floats(5), floats(2)), ValueError, "source has 5 elements, expected 6"),
        (lambda g: g.broadcast(floats(1), root=3), ValueError, "root 3 is no rank of group 'g', which has 0 to 2"),
        (lambda g: g.broadcast(b"ab", root=0), ValueError, "buffer is read-only"),
        (lambda g: g.gather(floats(1), root=ROOT), ValueError, "target is missing on rank 1, which is the root"),
        (lambda g: g.all_to_all(floats(6), floats(9)), ValueError, "target has 9 elements, expected 6"),
        (lambda g: g.all_to_all(floats(5), floats(6)), ValueError, "5 elements, no multiple of 3 ranks: pass counts"),
        (
            lambda g: g.all_to_all(floats(6), floats(6), send_counts=[6, 0], receive_counts=[2, 2, 2]),
            ValueError,
            r"counts of source are \[6, 0\]; expected 3",
        ),
        (lambda g: g.send(floats(1), ROOT), ValueError, "rank 1 of group 'g' cannot send to or receive from itself"),
        (lambda g: g.receive(floats(1), 7), ValueError, "peer 7 is no rank"),
        (lambda g: g.subgroup([1, 1]), ValueError, r"ranks \[1, 1\]: list each rank once"),
        (lambda g: g.subgroup([5]), ValueError, "subgroup 5 is no rank"),
    ],
)
def test_what_cannot_be_is_refused_before_the_core_is_called(core, group, call, error, words):
    with pytest.raises(error, match=words):
        call(group)
    assert core.calls == []


def test_memory_that_overlaps_is_refused(core, group):
    whole = bytearray(12)
    view = memoryview(whole)
    with pytest.raises(ValueError, match="overlap"):
        group.all_reduce(view[:8], view[4:])
    with pytest.raises(ValueError, match="overlap"):
        group.all_gather(view[4:8], view)
    assert core.calls == []


def test_buffers_live_until_their_operation_has_ended_even_if_nobody_keeps_the_work(core, group):
    memory = Memory(8)
    watched = weakref.ref(memory)
    group.all_reduce(memory, asynchronous=True)
    del memory
    gc.collect()
    assert watched() is not None
    core.ended.add(1)
    group.barrier(asynchronous=True)
    gc.collect()
    assert watched() is None


def test_a_work_tells_its_end_once_it_has_come(core, group):
    work = group.receive(bytearray(4), 0)
    assert not work.is_done()
    assert not work.wait(0.0)
    core.ended.add(1)
    assert work.is_done()
    assert work.wait()
    assert work.source == 2


def test_a_failure_is_raised_by_every_wait(core, group):
    work = group.all_reduce(bytearray(4), asynchronous=True)
    core.ended.add(1)
    core.failures[1] = PeerLost("rank 2 is lost", culprit=2)
    assert work.is_done()
    for _ in range(2):
        with pytest.raises(PeerLost, match="rank 2 is lost"):
            work.wait()


def test_a_closed_group_closes_its_core_once_and_says_so(core, group):
    group.close()
    group.close()
    assert core.calls == [("close",)]
    with pytest.raises(GroupClosed, match="group 'g' was closed by this rank, 1"):
        group.barrier()


def test_a_program_that_fails_tells_the_other_ranks(core):
    with pytest.raises(ZeroDivisionError), Communicator(core, rank=0, size=2, name="g"):
        raise ZeroDivisionError("oh")
    assert core.calls == [("abort", "the program of rank 0 ended with ZeroDivisionError: oh"), ("close",)]


def test_a_call_that_is_interrupted_poisons_the_group(core, group):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    core.run = interrupted
    with pytest.raises(KeyboardInterrupt):
        group.scatter(None, bytearray(1), root=0)
    assert core.calls == [("abort", "rank 1 was interrupted in an operation by KeyboardInterrupt")]


def test_a_rank_that_is_not_listed_has_no_subgroup_and_waits_for_those_of_the_others(core, group):
    assert group.subgroup([0, 2]) is None
    assert group.subgroup([]) is None
    limit_s = CollectiveSettings().connect_timeout_s
    assert core.calls == [Operation(Kind.BARRIER, timeout_s=limit_s)] * 2


def test_messages_name_bytes_peer_and_tag(core, group):
    memory = floats(3)
    group.send(memory, 2, tag=5, timeout_s=1.5)
    group.receive(memory)
    assert core.calls == [
        Operation(Kind.SEND, count=12, source=address(memory), asynchronous=True, timeout_s=1.5, root=2, tag=5),
        Operation(Kind.RECEIVE, count=12, target=address(memory), asynchronous=True, root=ANY_RANK),
    ]


def test_a_subgroup_that_cannot_be_formed_poisons_the_group(core):
    settings = CollectiveSettings(connect_timeout_s=0.05, core="reference")
    group = Communicator(core, rank=ROOT, size=SIZE, name="g", store=NoStore(), settings=settings)
    with pytest.raises(BootstrapError, match=r"group 'g\.1\.0' was not formed"):
        group.subgroup([0, 1])
    ((name, reason),) = core.calls
    assert name == "abort"
    assert "group 'g.1.0' could not be formed" in reason
