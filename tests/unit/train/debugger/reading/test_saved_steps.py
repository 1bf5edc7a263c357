"""Which steps are complete, which may still be saved, and which never will be."""

import pytest

from clary.train.debugger.errors import NoMoreData, StepNotYetAvailable, StepUnavailable
from clary.train.debugger.modes import ModeKeys
from clary.train.debugger.reading.ends import Ends
from clary.train.debugger.reading.saved_steps import SavedSteps, StepState
from clary.train.debugger.tensor_files import StepIndex

GLOBAL, TRAIN, EVAL = ModeKeys.GLOBAL, ModeKeys.TRAIN, ModeKeys.EVAL


def index(step: int, worker: str = "worker_0", mode: ModeKeys = GLOBAL, mode_step: int | None = None) -> StepIndex:
    number = step if mode_step is None else mode_step
    return StepIndex(step=step, worker=worker, mode=mode, mode_step=number, num_workers=1, written_at=float(step))


def saved(*indexes: StepIndex, num_workers: int = 1, ends: Ends | None = None) -> SavedSteps:
    steps = SavedSteps(ends or Ends())
    steps.num_workers = num_workers
    for one in indexes:
        steps.take_passed(one.worker, one.step)
        steps.take(one)
    return steps


def whole(steps: SavedSteps, mode: ModeKeys = GLOBAL) -> list[int]:
    return steps.among(steps, mode, with_incomplete=False)


def test_a_step_is_complete_once_each_worker_has_saved_it_or_a_later_one() -> None:
    steps = saved(index(0), index(10), num_workers=2)
    assert whole(steps) == []
    assert steps.among(steps, GLOBAL, with_incomplete=True) == [0, 10]
    assert steps.state(0, GLOBAL) is StepState.NOT_YET_AVAILABLE
    steps.take_passed("worker_1", 7)
    assert whole(steps) == [0]
    assert steps.state(5, GLOBAL) is StepState.UNAVAILABLE
    assert steps.state(10, GLOBAL) is StepState.NOT_YET_AVAILABLE
    steps.take_passed("worker_1", 3)
    assert whole(steps) == [0], "nobody goes back"
    steps.take_passed("worker_1", 12)
    assert whole(steps) == [0, 10]
    assert steps.workers == ["worker_0", "worker_1"]


def test_an_announced_worker_is_waited_for_and_read_from_the_first_step() -> None:
    ends = Ends()
    steps = saved(index(4), index(2000), ends=ends)
    assert (whole(steps), steps.next_look()) == ([4, 2000], 2000)
    ends.begin("worker_1", 1.0, 2)
    assert (whole(steps), steps.next_look()) == ([], 0)
    steps.take_passed("worker_1", 1500)
    assert (whole(steps), steps.next_look()) == ([4], 1500)
    assert saved().next_look() == 0


def test_workers_are_sorted_by_number() -> None:
    assert saved(*(index(0, f"worker_{number}") for number in (10, 2, 0))).workers == [
        "worker_0",
        "worker_2",
        "worker_10",
    ]


def test_a_step_that_is_missing_after_the_end_will_not_be_saved() -> None:
    steps = saved(index(3), index(9), num_workers=2)
    with pytest.raises(StepNotYetAvailable):
        steps.check(10, GLOBAL)
    steps.has_ended = True
    assert whole(steps) == [3, 9], "whoever has not saved will not"
    steps.check(9, GLOBAL)
    with pytest.raises(StepUnavailable):
        steps.check(5, GLOBAL)
    with pytest.raises(NoMoreData, match="the last is 9"):
        steps.check(10, GLOBAL)
    with pytest.raises(NoMoreData):
        steps.check(0, EVAL)


def test_each_phase_counts_its_own_steps() -> None:
    steps = saved(
        index(0, mode=TRAIN, mode_step=0), index(1, mode=EVAL, mode_step=0), index(2, mode=TRAIN, mode_step=1)
    )
    assert steps.modes == {TRAIN, EVAL}
    assert (whole(steps), whole(steps, TRAIN), whole(steps, EVAL)) == ([0, 1, 2], [0, 1], [0])
    assert (steps.of_mode(TRAIN), steps.of_mode(GLOBAL), steps.of_mode(ModeKeys.PREDICT)) == ([0, 2], [0, 1, 2], [])
    assert steps.global_step(TRAIN, 1) == 2
    assert steps.global_step(EVAL, 1) is None
    assert steps.state(1, TRAIN) is StepState.AVAILABLE
    assert steps.state(2, TRAIN) is StepState.NOT_YET_AVAILABLE
    assert steps.first_index(2).mode_step == 1


def test_steps_of_a_removed_worker_are_gone_unless_another_worker_has_them() -> None:
    steps = saved(
        index(0, "worker_0", TRAIN, 0),
        index(0, "worker_1", TRAIN, 0),
        index(6, "worker_1", TRAIN, 1),
        index(7, "worker_1", EVAL, 0),
        index(8, "worker_0", EVAL, 0),
    )
    gone = steps.forget("worker_1")
    assert [(one.step, one.worker) for one in gone] == [(0, "worker_1"), (6, "worker_1"), (7, "worker_1")]
    assert list(steps) == [0, 8]
    assert list(steps.of_workers(0)) == ["worker_0"]
    assert steps.of_workers(6) == {}
    assert steps.workers == ["worker_0"]
    assert steps.global_step(TRAIN, 0) == 0
    assert steps.global_step(TRAIN, 1) is None
    assert steps.global_step(EVAL, 0) == 8, "a number that another step has by now is that one's"
    assert steps.forget("worker_1") == []


def test_a_step_was_written_when_its_last_worker_wrote_it() -> None:
    steps = saved(index(2))
    steps.take(StepIndex(step=2, worker="worker_1", mode=GLOBAL, mode_step=2, num_workers=2, written_at=9.0))
    steps.take(StepIndex(step=2, worker="worker_2", mode=GLOBAL, mode_step=2, num_workers=2, written_at=1.0))
    assert steps.written_at == {2: 9.0}
