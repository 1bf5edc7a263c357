"""The conditions that end a window."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from clary.contract.deep_profiles import ProfileRequest
from clary.train.profiling import recording
from clary.train.profiling.rank_files import RankFiles
from clary.train.profiling.recording import Ending, Recording
from clary.train.profiling.window import Window


def begin(folder: Path, *, by_time: bool = False, **asked: object) -> Recording:
    request = ProfileRequest(**{"number": 1, "num_steps": 2, **asked})
    window = Window(on_other=lambda: None)
    return Recording(request, RankFiles(folder, 1, 0), window, first_step=7, by_time=by_time)


def test_a_window_of_steps_ends_at_its_last_step(tmp_path: Path) -> None:
    run = begin(tmp_path)
    run.count_step()
    assert (run.ending_at_step(), run.ending_between_steps()) == (None, None)
    run.count_step()
    assert run.ending_at_step() == Ending("")


def test_a_cancelled_window_ends_at_the_next_step(tmp_path: Path) -> None:
    run = begin(tmp_path, num_steps=100)
    run.request = replace(run.request, is_cancelled=True)
    assert (run.ending_between_steps(), run.ending_at_step()) == (None, Ending(""))


def test_a_window_that_lasts_too_long_ends_even_during_a_graph_capture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "MAX_WINDOW_S", -1.0)
    run = begin(tmp_path)
    words = "cut off after -1 s"
    assert run.ending_at_step() == run.ending_between_steps() == Ending(words, now=True)


def test_a_window_by_time_ends_after_its_duration(tmp_path: Path) -> None:
    assert begin(tmp_path, by_time=True, num_steps=0, duration_s=-1.0).ending_between_steps() == Ending("")
    run = begin(tmp_path, by_time=True, num_steps=0, duration_s=50.0)
    run.request = replace(run.request, is_cancelled=True)
    assert run.ending_between_steps() == Ending("")


def test_a_window_is_cut_off_at_the_limit_of_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MAX_TIMED_STEPS", 1)
    run = begin(tmp_path, num_steps=0, duration_s=1000.0)
    run.count_step()
    assert run.ending_at_step() == Ending("cut off after 1 steps")


def test_a_window_that_is_not_running_can_not_be_ended(tmp_path: Path) -> None:
    assert not begin(tmp_path).may_end
