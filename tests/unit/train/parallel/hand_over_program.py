"""How tensors of a pipeline are passed between two ranks, and how lent ones are framed. Functions `test_...()`."""

import io
import threading
import uuid

import torch

from clary.train.parallel.pipeline.hand_over import (
    LEAST_BYTES,
    Decision,
    HandOver,
    Seat,
    Way,
    agree,
    choose_way,
    own_seat,
    refusal_of,
)
from clary.train.parallel.pipeline.messages import HEAD_LENGTH, Message, Subject, decode, encode

ONE, TWO = Seat("h", "GPU-1", ("GPU-1", "GPU-2")), Seat("h", "GPU-2", ("GPU-1", "GPU-2"))
LIMIT_S = 20.0


class FakeLender:
    """Lends through a dict that all ranks of the process share."""

    def __init__(self, lent, broken=""):
        self.device = torch.device("cpu")
        self.lent, self.broken = lent, broken

    def lend(self, tensor):
        if self.broken == "lend":
            raise RuntimeError("invalid argument\nmore words")
        name = uuid.uuid4().bytes  # several threads lend at the same time
        self.lent[name] = tensor.clone()
        return name

    def borrow(self, record):
        if self.broken == "borrow":
            raise RuntimeError("peer access is not supported")
        return self.lent.pop(record) + (self.broken == "values")


class Gathering:
    """All-gathers between threads."""

    def __init__(self, size):
        self.barrier = threading.Barrier(size, timeout=LIMIT_S)
        self.values = [None] * size
        self.count = 0

    def of(self, rank):
        def gather(value):
            self.values[rank] = value
            self.barrier.wait()
            gathered = list(self.values)
            self.count += rank == 0
            self.barrier.wait()
            return gathered

        return gather


def agreed(seats, broken=None):
    gathering, lent, found = Gathering(len(seats)), {}, {}

    def run(rank):
        make = lambda: FakeLender(lent, (broken or {}).get(rank, ""))  # noqa: E731
        found[rank] = agree(rank, seats[rank], make, gathering.of(rank))

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(seats))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    return [found[rank] for rank in range(len(seats))], gathering.count


def failure_of(call):
    try:
        call()
    except (ValueError, OSError) as error:
        return error
    return None


def test_the_choice_between_device_and_host_memory_has_a_reason():
    for sender, receiver, way, words in (
        (ONE, TWO, Way.DEVICE, "sees the sender's GPU"),
        (ONE, ONE, Way.DEVICE, "one GPU has both"),
        (Seat("h"), ONE, Way.HOST, "the sender has no GPU"),
        (ONE, Seat("h"), Way.HOST, "the receiver has no GPU"),
        (ONE, Seat("other", "GPU-2", ("GPU-1", "GPU-2")), Way.HOST, "two hosts"),
        (ONE, Seat("h", "GPU-2", ("GPU-2",)), Way.HOST, "does not see the sender's GPU GPU-1: CUDA_VISIBLE_DEVICES"),
        (Seat("h", "GPU-1", ("GPU-1",), "for a reason"), TWO, Way.HOST, "for a reason"),
    ):
        found = choose_way(sender, receiver)
        assert found.way is way, found
        assert words in found.reason, found


def test_a_variable_or_the_allocator_rules_out_device_memory():
    assert refusal_of({}, "native") == ""
    assert refusal_of({"CLARY_PIPELINE_HAND_OVER": "host"}, "native") == "CLARY_PIPELINE_HAND_OVER=host"
    assert "cudaMallocAsync" in refusal_of({}, "cudaMallocAsync")
    found = failure_of(lambda: refusal_of({"CLARY_PIPELINE_HAND_OVER": "nccl"}, "native"))
    assert isinstance(found, ValueError)
    assert "'nccl'; expected auto or host" in str(found)


def test_ranks_without_gpus_lend_nothing_and_skip_the_trial():
    assert own_seat(torch.device("cpu"), "h") == Seat("h")
    assert agreed([Seat("h"), Seat("h")]) == ([None, None], 1)


def test_ranks_of_one_host_lend_after_a_trial():
    (one, two, far), count = agreed([ONE, TWO, Seat("other", "GPU-9", ("GPU-9",))])
    assert count == 3
    assert far is None
    assert (one.to[1].way, one.source[1].way, one.to[2].way) == (Way.DEVICE, Way.DEVICE, Way.HOST)
    assert two.is_lent_to(0, LEAST_BYTES)
    assert two.is_lent_by(0, LEAST_BYTES)
    assert not two.is_lent_to(0, LEAST_BYTES - 1)
    assert not two.is_lent_to(2, LEAST_BYTES)


def test_a_failed_trial_means_host_memory_on_both_sides():
    for broken, words in (("lend", "lending failed: invalid argument"), ("values", "a trial gave"), ("borrow", "peer")):
        (one, two), _ = agreed([ONE, TWO], {1: broken})
        # Rank 1 cannot lend or cannot borrow, so only one direction remains.
        sender, receiver, there, back = (two, one, 1, 0) if broken == "lend" else (one, two, 0, 1)
        assert sender.to[back].way is receiver.source[there].way is Way.HOST, (broken, sender, receiver)
        assert words in sender.to[back].reason
        assert "more words" not in sender.to[back].reason
        assert receiver.to[there].way is sender.source[back].way is Way.DEVICE


def through(message, lend=None, borrow=None):
    stream = io.BytesIO(b"".join(bytes(one) for one in encode(message, lend)))
    (length,) = HEAD_LENGTH.unpack(stream.read(HEAD_LENGTH.size))
    found = decode(stream.read(length), stream.readinto, borrow)
    return found, len(stream.read())


def test_lent_tensors_travel_in_the_header_next_to_others():
    lender = FakeLender({})
    large, small, empty = torch.arange(5000.0), torch.arange(3), torch.empty(0, 2)
    message = Message(Subject.FORWARD, None, "body", [small, large, empty, large * 2])
    found, left = through(message, lambda one: lender.lend(one) if one.numel() > 100 else None, lender.borrow)
    assert left == 0
    for ours, theirs in zip(found.tensors, message.tensors, strict=True):
        assert torch.equal(ours, theirs)
    assert not lender.lent, "a loan was not taken"


def test_the_result_of_a_step_is_never_lent():
    lender = FakeLender({})
    found, _ = through(Message(Subject.STEP_END, None, None, [torch.ones(5)]), lender.lend)
    assert torch.equal(found.tensors[0], torch.ones(5))
    assert not lender.lent


def test_a_loan_to_a_rank_that_agreed_to_none_is_refused():
    lender = FakeLender({})
    found = failure_of(lambda: through(Message(Subject.OUTPUT, None, None, [torch.ones(5)]), lender.lend))
    assert isinstance(found, OSError)
    assert "not agreed to any loan" in str(found)


def test_no_tensor_is_lent_after_a_decision_for_host_memory():
    one = HandOver(FakeLender({}), {1: Decision(Way.HOST, "x")}, {1: Decision(Way.HOST, "x")})
    assert not one.is_lent_to(1, 1 << 30)
    assert not one.is_lent_by(1, 1 << 30)
