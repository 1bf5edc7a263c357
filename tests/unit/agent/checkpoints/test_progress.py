"""Detection of stalls of the mirror, second by second."""

from __future__ import annotations

import pytest
from fake_checkpoint_store import FakeClock

from clary.agent.checkpoints.grouping import GroupContent
from clary.agent.checkpoints.progress import Progress
from clary.agent.checkpoints.scanning import FileFacts
from clary.agent.checkpoints.sights import FileSight, Sight
from clary.contract.agent_protocol import CheckpointFacts

INTERVAL_S = 5.0


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def progress(clock: FakeClock) -> Progress:
    return Progress(CheckpointFacts(set_number=3), interval_s=INTERVAL_S, clock=clock)


def dirty(clock: FakeClock) -> dict[str, Sight]:
    facts = FileFacts(size_bytes=7, modified_ns=1, changed_ns=1, inode=1, mode=0o644)
    content = GroupContent(files={"step/a": facts})
    since_s = clock.monotonic()
    file = FileSight(facts=facts, since_s=since_s, busy_since_s=since_s, dirty_since_s=since_s)
    return {"step": Sight(content=content, files={"step/a": file}, frame_since_s=since_s)}


def test_files_that_are_being_written_are_no_stall(progress: Progress, clock: FakeClock) -> None:
    progress.saw(dirty(clock), {})
    clock.seconds += 100.4
    facts = progress.facts
    assert (facts.dirty_files, facts.dirty_bytes, facts.lag_s, facts.stalled_since) == (1, 7, 100, None)


def test_an_upload_without_progress_is_a_stall_after_three_intervals(progress: Progress, clock: FakeClock) -> None:
    progress.saw(dirty(clock), {})
    began = clock.now()
    progress.begins()
    clock.seconds += 3 * INTERVAL_S
    assert progress.facts.stalled_since is None
    clock.seconds += 0.1
    assert progress.facts.stalled_since == began
    progress.went_well(None, is_new=False)
    assert progress.facts.stalled_since is None


def test_a_large_upload_that_moves_on_is_no_stall(progress: Progress, clock: FakeClock) -> None:
    progress.begins()
    for _ in range(20):
        clock.seconds += INTERVAL_S
        progress.moves()
    assert progress.facts.stalled_since is None
    clock.seconds += 4 * INTERVAL_S
    assert progress.facts.stalled_since is not None


def test_rounds_that_fail_one_after_the_other_are_a_stall_though_something_moves(
    progress: Progress, clock: FakeClock
) -> None:
    progress.begins()
    for _ in range(4):
        progress.failed("no room")
        clock.seconds += INTERVAL_S
        progress.begins()
        progress.moves()
    facts = progress.facts
    assert facts.stalled_since is not None
    assert facts.error == "no room"


def test_facts_that_mean_the_same_are_equal(progress: Progress, clock: FakeClock) -> None:
    progress.saw(dirty(clock), {})
    first = progress.facts
    clock.seconds += 0.3
    assert progress.facts == first
