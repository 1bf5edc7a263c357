"""Used signatures, over restarts of the service and of the machine."""

from datetime import timedelta

import pytest

from clary.control.wire.replay_journal import ReplayJournal, read_boot_id
from clary.control.wire.replays import ReplayGuard
from clary.testing.fake_clock import FakeClock

SKEW_S = 300.0
USED, OTHER = "ab" * 32, "cd" * 32


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def start(tmp_path, clock):
    def start(*, boot_id="boot 1", is_first=False):
        journal = ReplayJournal(tmp_path / "used", skew_s=SKEW_S, now=clock.now(), is_first=is_first, boot_id=boot_id)
        return ReplayGuard(skew_s=SKEW_S, journal=journal, now_s=clock.monotonic())

    return start


def is_new(guard, signature, signed_at, clock):
    return guard.is_new(signature, signed_at=signed_at, clock=clock)


def test_a_used_signature_is_refused_after_a_restart_of_the_service(start, clock):
    signed_at = clock.now()
    assert is_new(start(is_first=True), USED, signed_at, clock)
    for _ in range(3):
        clock.advance(1)
        again = start()
        assert not is_new(again, USED, signed_at, clock)
        assert len(again) == 1


def test_a_request_that_arrives_during_a_restart_of_the_service_passes(start, clock):
    start(is_first=True)
    signed_at = clock.now() - timedelta(seconds=120)  # also from a client whose clock is behind
    clock.advance(5)
    assert is_new(start(), OTHER, signed_at, clock)


def test_a_new_state_folder_accepts_clients_whose_clock_is_behind(start, clock):
    assert is_new(start(is_first=True), OTHER, clock.now() - timedelta(seconds=120), clock)


@pytest.mark.parametrize("lost", ["boot", "file", "header", "unknown boot"])
def test_if_records_may_be_lost_earlier_signatures_are_refused(start, clock, tmp_path, lost):
    signed_at = clock.now()
    boot = "" if lost == "unknown boot" else "boot 1"
    assert is_new(start(is_first=True, boot_id=boot), USED, signed_at, clock)
    current = tmp_path / "used" / "current"
    if lost == "file":
        current.unlink()
    elif lost == "header":
        current.write_bytes(b"\0" * 100)
    clock.advance(10)
    again = start(boot_id="boot 2" if lost == "boot" else boot)
    assert not is_new(again, USED, signed_at, clock)
    assert not is_new(again, OTHER, signed_at, clock)
    clock.advance(1)
    assert is_new(again, OTHER, clock.now(), clock), "signed again, it passes"


def test_a_clock_that_was_ahead_at_the_start_of_the_machine_refuses_nobody_for_longer_than_signatures_live(
    start, clock
):
    signed_at = clock.now() + timedelta(seconds=SKEW_S)
    assert is_new(start(is_first=True), USED, signed_at, clock)
    clock.set_time_of_day(clock.now() + timedelta(hours=2))
    again = start(boot_id="boot 2")
    clock.set_time_of_day(clock.now() - timedelta(hours=2))
    clock.advance(2 * SKEW_S)
    assert not is_new(again, USED, signed_at, clock)
    assert not is_new(again, OTHER, clock.now(), clock)
    clock.advance(10)
    assert is_new(again, OTHER, clock.now(), clock)


def test_a_torn_record_at_the_end_is_ignored(start, clock, tmp_path):
    signed_at = clock.now()
    guard = start(is_first=True)
    assert is_new(guard, USED, signed_at, clock)
    assert is_new(guard, OTHER, signed_at, clock)
    current = tmp_path / "used" / "current"
    current.write_bytes(current.read_bytes()[:-5])
    again = start()
    assert not is_new(again, USED, signed_at, clock)
    assert is_new(again, OTHER, signed_at, clock)


def test_the_journal_is_bounded_and_keeps_every_signature_that_is_still_valid(start, clock, tmp_path):
    guard = start(is_first=True)
    late = {}
    for number in range(400):
        clock.advance(10)
        signature = f"{number:032x}" * 2
        late[signature] = clock.now() + timedelta(seconds=SKEW_S)  # signed by a clock that is ahead
        assert is_new(guard, signature, late[signature], clock)
    assert sum(path.stat().st_size for path in (tmp_path / "used").iterdir()) < 200 * 24
    again = start()
    good = [item for item in late.items() if item[1] >= clock.now() - timedelta(seconds=SKEW_S)]
    assert len(good) >= 60
    assert not any(is_new(again, *item, clock) for item in good)


def test_after_a_full_disk_the_next_start_refuses_earlier_signatures(start, clock, tmp_path, monkeypatch):
    guard = start(is_first=True)
    signed_at = clock.now()

    def full(descriptor, data):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("clary.control.wire.replay_journal.os.write", full)
        assert is_new(guard, USED, signed_at, clock), "the change itself is carried out"
    assert not is_new(guard, USED, signed_at, clock)
    clock.advance(1)
    assert not is_new(start(), USED, signed_at, clock)


def test_this_machine_has_a_boot_id():
    assert len(read_boot_id()) == 36
