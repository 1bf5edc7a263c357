"""Background tasks of the service: every one that is meant to last is started again when it ends with an error."""

import ast
import asyncio
import logging
from pathlib import Path

import pytest

import clary.control
from clary.base.errors import StoreError
from clary.control import background_tasks
from clary.control.background_tasks import FailureLog, keep_running

# Modules whose own tasks are not meant to last: each does one piece of work, and its owner awaits it or logs its end.
ONE_PIECE_OF_WORK = {
    "background_tasks.py",
    "egress/forwarding.py",  # one connection
    "egress/tunnels.py",
    "engines/boxes/lease_book.py",
    "engines/local/engine.py",
    "engines/local/network/fabric.py",  # in the process of a job's network, which ends if one of its tasks ends
    "engines/local/network/relay.py",
    "folder_flush.py",  # one flush
    "limited_children.py",  # one stream of a child
    "objects/checkpoint_sets.py",
    "objects/public/public_door.py",  # one copy
    "objects/seaweed.py",  # one probe
    "reconcile/desks/rehearsal_desk.py",  # one rehearsal
    "reconcile/job_tasks.py",  # one launch or release
    "reconcile/releasing.py",
    "server/edge/acceptor.py",  # one connection
    "server/edge/connect_proxy.py",  # one question to AWS
    "server/ownership.py",  # the lease: its loss ends the service
    "server/start_notes.py",
    "server/verification_runs.py",
    "services/query_desk.py",  # one query
}
STARTERS = ("create_task", "ensure_future")


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_tasks, "FIRST_PAUSE_S", 0.001)


def test_no_other_module_starts_tasks_of_its_own() -> None:
    root = Path(clary.control.__path__[0])
    found = set()
    for path in root.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if not any(name in text for name in STARTERS):
            continue
        calls = [node.func for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
        if any(isinstance(call, ast.Attribute) and call.attr in STARTERS for call in calls):
            found.add(path.relative_to(root).as_posix())
    assert found - ONE_PIECE_OF_WORK == set(), "start a task that is meant to last with keep_running"


async def test_a_task_that_fails_is_logged_with_its_traceback_and_started_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rounds: list[int] = []

    async def work() -> None:
        rounds.append(len(rounds))
        if len(rounds) < 3:
            raise OSError(5, "Input/output error")

    await asyncio.wait_for(keep_running("cleaning", work), 10)
    assert rounds == [0, 1, 2]
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 2
    assert "cleaning" in errors[0].getMessage()
    assert errors[0].exc_info


async def test_a_cancelled_task_ends_and_is_not_started_again() -> None:
    begun = asyncio.Event()

    async def work() -> None:
        assert not begun.is_set()
        begun.set()
        await asyncio.Event().wait()

    task = keep_running("waiting", work)
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_task_can_be_cancelled_during_its_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_tasks, "FIRST_PAUSE_S", 60.0)
    failed = asyncio.Event()

    async def work() -> None:
        failed.set()
        raise ZeroDivisionError

    task = keep_running("pausing", work)
    await failed.wait()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 10)


async def test_the_cancellation_of_something_inside_does_not_end_the_task() -> None:
    rounds: list[int] = []

    async def work() -> None:
        rounds.append(len(rounds))
        if len(rounds) == 1:
            inner: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            inner.cancel()
            await inner

    await asyncio.wait_for(keep_running("outer", work), 10)
    assert rounds == [0, 1]


async def test_pauses_grow_up_to_a_limit_and_are_short_again_after_a_steady_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []
    now_s = [0.0]
    runs_s = iter([0.0, 0.0, 0.0, 0.0, background_tasks.STEADY_S + 1, 0.0])

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    async def work() -> None:
        run_s = next(runs_s, None)
        if run_s is None:
            return
        now_s[0] += run_s
        raise ZeroDivisionError

    monkeypatch.setattr(background_tasks, "FIRST_PAUSE_S", 1.0)
    monkeypatch.setattr(background_tasks, "LONGEST_PAUSE_S", 5.0)
    monkeypatch.setattr(background_tasks.asyncio, "sleep", sleep)
    monkeypatch.setattr(background_tasks.time, "monotonic", lambda: now_s[0])
    await keep_running("failing", work)
    assert pauses == [1.0, 2.0, 4.0, 5.0, 1.0, 2.0]


def test_a_failure_that_passes_takes_one_line_a_minute_and_a_defect_its_traceback(caplog):
    """A database that is away fails every pass, twice a second."""
    now = [0.0]
    failures = FailureLog(logging.getLogger("test"), monotonic=lambda: now[0])
    away = StoreError("the server is away", retryable=True)
    for _ in range(130):
        failures.tell("this pass failed", away)
        now[0] += 0.5
    failures.tell("another failed", away)
    assert [record.getMessage() for record in caplog.records] == [
        "this pass failed: the server is away",
        "this pass failed (119 more times since the last such line): the server is away",
        "another failed: the server is away",
    ]
    assert not any(record.exc_info for record in caplog.records)
    for defect in (StoreError("a bug"), KeyError("name")):
        failures.tell("this pass failed", defect)
        assert caplog.records[-1].exc_info[1] is defect


def test_the_traceback_of_a_failure_that_goes_on_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    failures = FailureLog(logging.getLogger("test"), monotonic=lambda: now[0])
    for _ in range(130):
        failures.tell("this pass failed", KeyError("name"))
        failures.tell("this pass failed", TypeError("another defect"))
        now[0] += 0.5
    again = "this pass failed (119 more times since the last such line)"
    assert [record.getMessage() for record in caplog.records] == ["this pass failed"] * 2 + [again] * 2
    assert all(record.exc_info for record in caplog.records)
