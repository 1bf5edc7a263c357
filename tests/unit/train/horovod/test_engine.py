"""One rank's engine over a real group: rounds, names, joins, stalls, failures and shutdowns."""

from __future__ import annotations

import json
import logging
import threading
import time
from array import array

import pytest

from clary.train._native.interface import Dtype
from clary.train.collective.buffers import buffer_of
from clary.train.collective.communicator import open_group
from clary.train.horovod.engine import IDLE_ROUND_S, Engine
from clary.train.horovod.errors import HorovodInternalError
from clary.train.horovod.requests import Description, Request, Verb
from clary.train.horovod.settings import HorovodSettings
from clary.train.horovod.timeline import Timeline

LIMIT_S = 20.0
GLOBAL_RANK = 5


@pytest.fixture
def make_engine():
    """Make engines of one rank each, and close them at the end of the test."""
    made: list[Engine] = []

    def make(*, starts_thread: bool = False, on_special=None, **settings) -> Engine:
        group = open_group(None, rank=0, size=1)
        engine = Engine(
            group,
            ranks=[GLOBAL_RANK],
            settings=HorovodSettings(**settings),
            on_special=on_special,
            starts_thread=starts_thread,
        )
        made.append(engine)
        return engine

    yield make
    for engine in made:
        engine.close("the test has ended")


class Sum:
    """A tensor of three floats that is reduced."""

    def __init__(self, name: str, *, group_size: int = 0, **more) -> None:
        self.target = array("f", [0, 0, 0])
        description = Description(
            Verb.ALLREDUCE, Dtype.FLOAT32, (3,), group="g" if group_size else "", group_size=group_size
        )
        source = buffer_of(array("f", [1, 2, 3]), name="source")
        self.request = Request(name, description, source, buffer_of(self.target, name="target"), **more)

    @property
    def is_reduced(self) -> bool:
        """Whether the result is there and the handle is done without an error."""
        handle = self.request.handle
        return handle.is_done and handle.error is None and list(self.target) == [1, 2, 3]


def await_that(condition, words: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, words
        time.sleep(0.005)


def test_a_waiting_thread_drives_the_rounds_itself(make_engine):
    engine = make_engine()
    for _ in range(3):  # announced the first time, known afterwards
        tensors = [Sum(name) for name in "abc"]
        engine.submit([one.request for one in tensors])
        assert not any(one.is_reduced for one in tensors)
        engine.wait([one.request.handle for one in tensors])
        assert all(one.is_reduced for one in tensors)


def test_the_engine_s_thread_runs_tensors_that_no_thread_waits_for(make_engine):
    engine, tensor = make_engine(starts_thread=True), Sum("a")
    engine.submit([tensor.request])
    await_that(lambda: tensor.is_reduced, "nobody ran the tensor")


def test_a_request_without_a_waiting_thread_runs_as_soon_as_the_last_wait_has_ended(make_engine, monkeypatch):
    engine = make_engine(starts_thread=True)
    left = Sum("a")

    def wait_on(_):
        engine.submit([left.request])
        time.sleep(0.2)  # the engine's thread wakes up in this time, and leaves the rounds to the waiting thread

    monkeypatch.setattr(engine, "_await", wait_on)
    engine.wait([])
    ended_s = time.monotonic()
    while not left.request.handle.is_done:
        assert time.monotonic() - ended_s < IDLE_ROUND_S / 4
        time.sleep(0.01)


def test_the_end_of_a_tensor_causes_no_idle_round_of_the_engine_s_thread(make_engine, monkeypatch):
    # A peer that then submits a tensor would have to wait for another round, and for the pause before it.
    engine = make_engine(starts_thread=True)
    rounds = []
    run_round = engine._round
    monkeypatch.setattr(engine, "_round", lambda: (rounds.append(threading.current_thread().name), run_round())[1])
    began_s = time.monotonic()
    for _ in range(20):
        tensor = Sum("a")
        engine.submit([tensor.request], wakes_thread=False)
        engine.wait([tensor.request.handle])
        time.sleep(0.005)  # the engine's thread wakes up in this time
    took_s = time.monotonic() - began_s
    assert rounds.count("horovod") <= took_s / IDLE_ROUND_S


def test_concurrently_waiting_threads_all_get_their_results(make_engine):
    engine = make_engine(starts_thread=True)
    outcomes: list[bool] = []

    def work(thread: int) -> None:
        for step in range(20):
            tensor = Sum(f"{thread}.{step % 3}")
            engine.submit([tensor.request], wakes_thread=False)
            engine.wait([tensor.request.handle])
            outcomes.append(tensor.is_reduced)

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(LIMIT_S)
    assert outcomes == [True] * 80


def test_a_name_in_use_is_refused_with_the_whole_call(make_engine):
    engine, first, other = make_engine(), Sum("a"), Sum("b")
    engine.submit([first.request])
    with pytest.raises(ValueError, match="duplicate tensor name 'a'"):
        engine.submit([other.request, Sum("a").request])
    engine.wait([first.request.handle])
    assert not other.request.handle.is_done
    engine.submit([other.request, Sum("a").request])


def test_a_name_that_one_call_gives_twice_is_refused_with_the_whole_call(make_engine):
    engine, other = make_engine(), Sum("b")
    with pytest.raises(ValueError, match="duplicate tensor name 'a': one call gives it to two tensors on rank 0"):
        engine.submit([other.request, Sum("a").request, Sum("a").request])
    again = Sum("a")
    engine.submit([again.request, other.request])
    engine.wait([again.request.handle, other.request.handle])
    assert (again.is_reduced, other.is_reduced) == (True, True)


def test_nameless_operations_are_counted_by_verb(make_engine):
    engine = make_engine()
    names = [engine.make_name(verb) for verb in ("allreduce", "allgather", "allreduce")]
    assert names == ["allreduce.noname.0", "allgather.noname.0", "allreduce.noname.1"]


def test_a_group_waits_for_its_last_member(make_engine):
    engine, first, second, other = make_engine(), Sum("g.1", group_size=2), Sum("g.2", group_size=2), Sum("a")
    engine.submit([first.request, other.request])
    engine.wait([other.request.handle])
    assert not first.request.handle.is_done
    engine.submit([second.request])
    engine.wait([first.request.handle, second.request.handle])
    assert (first.is_reduced, second.is_reduced) == (True, True)


def test_join_names_the_last_rank_by_its_global_number(make_engine):
    engine = make_engine()
    assert engine.join() == GLOBAL_RANK
    assert engine.join() == GLOBAL_RANK
    tensor = Sum("a")
    engine.submit([tensor.request])
    engine.wait([tensor.request.handle])
    assert tensor.is_reduced


def test_a_refused_tensor_gives_the_reason_and_the_engine_continues(make_engine):
    engine, tensor = make_engine(), Sum("a")
    gather = Request(
        "gather", Description(Verb.ALLGATHER, Dtype.FLOAT32), buffer_of(array("f", [1]), name="source"), rows=1
    )
    engine.submit([gather])
    engine.join()
    with pytest.raises(HorovodInternalError, match="tensor 'gather': allgather is not supported with join"):
        engine.wait([gather.handle])
    engine.submit([tensor.request])
    engine.wait([tensor.request.handle])
    assert tensor.is_reduced


def test_operations_on_process_sets_go_to_the_given_function(make_engine):
    told: list[Description] = []
    engine = make_engine(on_special=told.append)
    description = Description(Verb.ADD_PROCESS_SET, details=(0, 5))
    request = Request("set", description, is_nameless=True)
    engine.submit([request])
    engine.wait([request.handle])
    assert told == [description]


def test_a_tensor_that_waits_too_long_is_logged(make_engine, caplog):
    engine = make_engine(stall_warning_s=0.05, stall_limit_s=0.5)
    waiting = Sum("g.1", group_size=2)
    engine.submit([waiting.request])
    with (
        caplog.at_level(logging.WARNING, "horovod"),
        pytest.raises(HorovodInternalError, match=r"'g.1' has waited for .* HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"),
    ):
        engine.wait([waiting.request.handle])
    assert "tensor 'g.1' has waited for more than 0.05 s" in caplog.text
    with pytest.raises(HorovodInternalError, match="has waited for"):
        engine.submit([Sum("a").request])


def test_an_error_of_one_tensor_reaches_all_waiting_threads_and_ends_the_engine(make_engine):
    def fail() -> None:
        raise OSError("the device is gone")

    engine = make_engine()
    broken, other = Sum("a", prepare=fail), Sum("g.1", group_size=2)
    engine.submit([broken.request, other.request])
    with pytest.raises(HorovodInternalError, match=r"rank 0: .*the device is gone"):
        engine.wait([other.request.handle])
    assert "the device is gone" in str(broken.request.handle.error)
    with pytest.raises(HorovodInternalError, match="the device is gone"):
        engine.join()


def test_closing_fails_pending_tensors_with_its_reason(make_engine):
    engine, tensor = make_engine(starts_thread=True), Sum("g.1", group_size=2)
    engine.submit([tensor.request])
    errors: list[str] = []

    def wait() -> None:
        try:
            engine.wait([tensor.request.handle])
        except HorovodInternalError as error:
            errors.append(str(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    engine.close("this rank has left")
    waiting.join(LIMIT_S)
    assert not waiting.is_alive()
    assert len(errors) == 1
    assert "this rank has left" in errors[0]
    engine.close("a second time")
    with pytest.raises(HorovodInternalError):
        engine.submit([Sum("a").request])


def test_closing_fails_tensors_that_no_thread_has_started(make_engine):
    engine, tensor = make_engine(), Sum("a")
    engine.submit([tensor.request])
    engine.close("this rank has left")
    with pytest.raises(HorovodInternalError, match="this rank has left"):
        engine.wait([tensor.request.handle])
    assert list(tensor.target) == [0, 0, 0]


def test_an_idle_engine_refuses_requests_after_its_end(make_engine):
    engine = make_engine(starts_thread=True)
    begun = time.monotonic()
    engine.close("this rank has left")
    assert time.monotonic() - begun < LIMIT_S / 2
    with pytest.raises(HorovodInternalError, match="has been shut down: call init first"):
        engine.submit([Sum("a").request])


def test_a_timeline_records_negotiations_operations_and_rounds(make_engine, tmp_path):
    engine, path = make_engine(), tmp_path / "timeline.json"
    engine.timeline = Timeline(str(path), marks_cycles=True)
    tensors = [Sum("a"), Sum("b")]
    engine.submit([one.request for one in tensors])
    engine.wait([one.request.handle for one in tensors])
    engine.close("the end")
    events = json.loads(path.read_text())
    rows = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    spans = [(rows[event["tid"]], event["name"]) for event in events if event["ph"] == "X"]
    assert sorted(spans) == [
        ("a", "ALLREDUCE"),
        ("a", "NEGOTIATE_ALLREDUCE"),
        ("b", "ALLREDUCE"),
        ("b", "NEGOTIATE_ALLREDUCE"),
    ]
    assert all(event["dur"] >= 0 for event in events if event["ph"] == "X")
    assert any(event["name"] == "CYCLE_START" for event in events)


class StoppedEngine(Engine):
    """An engine whose timeline another thread stops after a number of reads.

    Args:
        timeline: the timeline that runs until then.
        num_reads: number of reads of the attribute `timeline` that find it.
    """

    def __init__(self, timeline: Timeline, num_reads: int) -> None:
        super().__init__(open_group(None, rank=0, size=1), ranks=[0], settings=HorovodSettings(), starts_thread=False)
        self.running = timeline
        self.reads_left = num_reads

    @property
    def timeline(self) -> Timeline | None:  # type: ignore[override]
        """The timeline, or None after the last read that finds it."""
        self.reads_left -= 1
        return self.running if self.reads_left >= 0 else None

    @timeline.setter
    def timeline(self, _: Timeline | None) -> None:
        """Ignore the value that the engine sets at its start."""


@pytest.mark.parametrize("num_reads", range(1, 8))
def test_a_timeline_that_another_thread_stops_during_a_round_does_not_end_the_engine(num_reads, tmp_path):
    timeline = Timeline(str(tmp_path / "timeline.json"), marks_cycles=True)
    engine, tensor = StoppedEngine(timeline, num_reads), Sum("a")
    engine.submit([tensor.request])
    engine.wait([tensor.request.handle])
    assert tensor.is_reduced
    engine.close("the end")
    timeline.close()


class LyingGroup:
    """Stands for a group of two ranks, the second of which sends nonsense in place of news.

    Args:
        length: the length of its message, as it announces it.
        message: the bytes that it sends.
    """

    rank, size = 0, 2

    def __init__(self, length: int, message: bytes) -> None:
        self.length = length
        self.message = message
        self.aborted = ""

    def all_reduce(self, ballot, **_) -> None:
        """Make the ballot say that the news of the two ranks differ."""
        ballot[:17] = bytes(17)

    def all_gather(self, source, target) -> None:
        """Return the lengths in the first call, and the messages in the second."""
        if isinstance(target, memoryview):
            target[0], target[1] = source[0], self.length
            return
        longest = len(target) // 2
        target[:longest] = source
        target[longest:] = self.message.ljust(longest)

    def abort(self, reason: str) -> None:
        """Record the reason."""
        self.aborted = reason

    def close(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize(
    ("length", "message", "words"),
    [
        (1 << 40, b"", f"rank 8 announces news of {1 << 40} bytes, at most 67108864 are allowed"),
        (-1, b"", "rank 8 announces news of -1 bytes"),
        (4, b"nope", "rank 8 sent 4 bytes that are not news of its tensors"),
        (30000, b"[" * 30000, "rank 8 sent 30000 bytes that are not news of its tensors"),
        (16, b"[false, [[1]],[]]"[:16], "rank 8 sent 16 bytes that are not news of its tensors"),
    ],
)
def test_invalid_news_name_their_rank_and_end_the_group(length, message, words):
    group = LyingGroup(length, message)
    engine = Engine(group, ranks=[7, 8], settings=HorovodSettings(), starts_thread=False)  # type: ignore[arg-type]
    tensor = Sum("a")
    engine.submit([tensor.request])
    with pytest.raises(HorovodInternalError, match=words):
        engine.wait([tensor.request.handle])
    assert words in group.aborted
    engine.close("the test has ended")
