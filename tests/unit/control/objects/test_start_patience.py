"""How long the service waits for the start of the object store, decided without a clock or a process."""

from __future__ import annotations

import os
import time
from pathlib import Path

from clary.control.objects.start_patience import LONGEST_START_S, Signs, StartPatience, signs_of


def ended_at(busy_share: float, *, silence_s: float = 30.0, grows_log: bool = False) -> tuple[float, str]:
    """Simulate a start second by second; return the second at which the wait was given up, and the reason."""
    patience = StartPatience(100.0, silence_s=silence_s)
    for second in range(1, 2000):
        log_bytes = second if grows_log else 7
        why = patience.why_over(100.0 + second, Signs(busy_s=busy_share * second, log_bytes=log_bytes))
        if why is not None:
            return second, why
    raise AssertionError("the start was waited for without end")


def test_an_idle_process_is_given_up_after_the_silence_limit() -> None:
    second, why = ended_at(0.0)
    assert 30 <= second <= 32
    assert why == "it has neither computed nor logged for 30 s"


def test_timers_of_a_hung_store_are_no_sign_of_life() -> None:
    assert ended_at(0.006)[0] <= 45


def test_a_store_that_gets_a_twentieth_of_a_core_is_waited_for_up_to_the_limit() -> None:
    second, why = ended_at(0.05)
    assert second == LONGEST_START_S
    assert why == "it is busy, but 600 s have passed"


def test_a_store_that_waits_for_the_disk_and_logs_is_waited_for() -> None:
    assert ended_at(0.0, grows_log=True)[0] == LONGEST_START_S


def test_signs_of_life_are_processor_time_and_log_bytes(tmp_path: Path) -> None:
    log = tmp_path / "log"
    before = signs_of(os.getpid(), log)
    ends_s = time.process_time() + 0.05
    while time.process_time() < ends_s:
        pass
    log.write_bytes(b"12345")
    after = signs_of(os.getpid(), log)
    assert after.busy_s - before.busy_s >= 0.04
    assert (before.log_bytes, after.log_bytes) == (0, 5)


def test_a_missing_process_shows_no_sign_of_life(tmp_path: Path) -> None:
    assert signs_of(2**22 + 1, tmp_path / "none") == Signs(busy_s=0.0, log_bytes=0)
