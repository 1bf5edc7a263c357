"""The request that a process answers, the one that is next, and abandoned requests."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from clary.base.plain import to_plain
from clary.contract.deep_profiles import OUT_FOLDER, ProfileRequest, RankProfile, RankState
from clary.train.profiling import waiting_requests
from clary.train.profiling.rank_files import RankFiles
from clary.train.profiling.step_counter import StepCounter
from clary.train.profiling.waiting_requests import WaitingRequests


class Process:
    """The requests to one process, and its reports."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.steps = StepCounter()
        self.told: list[tuple[RankState, str]] = []
        self.requests = WaitingRequests(folder, steps=self.steps, tell=self.tell)

    def tell(self, files: RankFiles, state: RankState, words: str) -> None:
        files.tell(RankProfile(rank=0, state=state, words=words))
        self.told.append((state, words))

    def ask(self, request: ProfileRequest) -> list[ProfileRequest]:
        (self.folder / f"request-{request.number}.json").write_text(json.dumps(to_plain(request)))
        return self.requests.take_up()

    def due(self) -> int | None:
        self.steps.num_steps += 1
        waiting = self.requests.take_due()
        return None if waiting is None else waiting.request.number


def pass_time(monkeypatch: pytest.MonkeyPatch, seconds: float, *, step_s: float = 0.0) -> None:
    """Advance both clocks by `seconds`, and the wall clock by a step as well."""
    clocks = SimpleNamespace(time=lambda: time.time() + seconds + step_s, monotonic=lambda: time.monotonic() + seconds)
    monkeypatch.setattr(waiting_requests, "time", clocks)


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Process:
    for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RANK", "1")
    return Process(tmp_path)


def test_requests_begin_in_their_order_and_each_at_its_step(process: Process) -> None:
    process.ask(ProfileRequest(number=1, num_steps=1, start_step=3))
    process.ask(ProfileRequest(number=2, num_steps=1))
    assert [process.due(), process.due(), process.due(), process.due()] == [2, None, 1, None]
    assert [state for state, _ in process.told] == [RankState.WAITING, RankState.WAITING]
    assert not process.requests.has_any


def test_a_request_that_another_process_of_the_rank_answers_is_ignored(process: Process) -> None:
    assert RankFiles(process.folder, 1, 1).claim()
    process.ask(ProfileRequest(number=1, num_steps=1))
    assert process.due() is None
    assert (process.requests.has_any, process.told) == (False, [])


def test_a_request_that_is_cancelled_before_it_begins_never_begins(process: Process) -> None:
    request = ProfileRequest(number=1, num_steps=1, start_step=100)
    assert process.ask(request) == []
    assert process.due() is None
    process.requests.answer()
    cancelled = replace(request, is_cancelled=True)
    assert process.ask(cancelled) == [cancelled]
    assert process.requests.take_up() == [], "told once"
    assert not process.requests.has_any
    assert process.told == [(RankState.WAITING, ""), (RankState.FAILED, "cancelled before it began")]


def test_a_process_that_does_not_answer_for_its_rank_reports_no_cancellation(process: Process) -> None:
    request = ProfileRequest(number=1, num_steps=1, start_step=100)
    process.ask(request)
    rank = RankFiles(process.folder, 1, 1)  # another process with the same rank number, which trains
    assert rank.claim()
    rank.tell(RankProfile(rank=1, state=RankState.DONE, words="three traces"))
    process.ask(replace(request, is_cancelled=True))
    assert (process.requests.has_any, process.told) == (False, [])
    answer = json.loads((process.folder / OUT_FOLDER / "1/rank-1.json").read_text())
    assert answer["state"] == RankState.DONE


def test_a_rank_without_a_step_reports_a_cancelled_request(process: Process) -> None:
    request = ProfileRequest(number=1, num_steps=1, start_step=100)
    process.ask(request)
    process.ask(replace(request, is_cancelled=True))
    assert not process.requests.has_any
    assert process.told == [(RankState.WAITING, ""), (RankState.FAILED, "cancelled before it began")]


def test_a_worker_of_a_data_loader_reports_no_cancellation(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_requests, "may_be_rank", lambda: False)
    request = ProfileRequest(number=1, num_steps=1, start_step=100)
    process.ask(request)
    process.ask(replace(request, is_cancelled=True))
    assert (process.requests.has_any, process.told) == (False, [])


def test_a_program_without_steps_is_recorded_late_if_no_step_was_named(process: Process) -> None:
    process.ask(ProfileRequest(number=1, num_steps=0))
    process.ask(ProfileRequest(number=2, num_steps=1, start_step=5))
    assert process.requests.take_late() is None, "not before it is answered"
    process.requests.answer()
    assert process.told == [(RankState.WAITING, "")]
    late = process.requests.take_late()
    assert late is not None
    assert late.request.number == 1
    assert (process.requests.take_late(), process.requests.has_any) == (None, True)


def test_a_request_that_no_step_has_begun_in_time_is_given_up(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    process.ask(ProfileRequest(number=1, num_steps=1, start_step=100, give_up_at=time.time() + 1000.0))
    assert process.due() is None
    process.requests.answer()
    pass_time(monkeypatch, 2000.0)
    process.requests.answer()
    assert process.told[0] == (RankState.WAITING, "")
    assert [state for state, _ in process.told[1:]] == [RankState.FAILED]
    assert not process.requests.has_any


@pytest.mark.parametrize("step_s", [60.0, 3600.0, 86_400.0, -60.0, -3600.0, -86_400.0])
def test_a_step_of_the_wall_clock_does_not_move_the_start_of_a_request(
    process: Process, monkeypatch: pytest.MonkeyPatch, step_s: float
) -> None:
    now = time.time()
    process.ask(ProfileRequest(number=1, num_steps=1, start_at=now + 50.0, give_up_at=now + 100.0))
    assert process.due() is None
    pass_time(monkeypatch, 40.0, step_s=step_s)
    process.requests.answer()
    assert process.due() is None
    assert [state for state, _ in process.told] == [RankState.WAITING]
    pass_time(monkeypatch, 60.0, step_s=step_s)
    process.requests.answer()
    assert process.due() == 1
    process.ask(ProfileRequest(number=2, num_steps=1, start_step=100, give_up_at=time.time() + 60.0 + step_s + 100.0))
    assert process.due() is None
    pass_time(monkeypatch, 200.0, step_s=-step_s)
    process.requests.answer()
    assert not process.requests.has_any


def test_a_request_that_arrives_too_late_is_dropped(process: Process) -> None:
    process.ask(ProfileRequest(number=1, num_steps=1, give_up_at=1.0))
    assert not process.requests.has_any
