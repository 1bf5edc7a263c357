"""Times of a notice: of a stop without an order, of the programs' end, of the agent's exit."""

import pytest

from clary.agent.supervisor import notice_period
from clary.agent.supervisor.notice_period import AFTER_STOP_S, ECHO_S, GANG_ECHO_S, NoticePeriod
from clary.contract.agent_protocol import NOTICE_MARGIN_S, RECLAIM_REASON
from clary.testing.launch_plans import make_plan

ANSWER_S = 2.0


class FakeTime:
    """A clock that moves only when a test moves it."""

    now_s = 1000.0

    def monotonic(self):
        return self.now_s


@pytest.fixture
def time(monkeypatch):
    fake = FakeTime()
    monkeypatch.setattr(notice_period, "time", fake)
    return fake


def period(**plan):
    made = NoticePeriod(answer_s=ANSWER_S)
    made.know(make_plan(**{"stop_grace_s": 120.0, **plan}))
    return made


def test_without_a_notice_nothing_is_due_and_orders_are_unchanged(time):
    made = period(notice_grace_s=30.0)
    assert (made.has_begun, made.why, made.stop_at_s(), made.leave_at_s(), made.is_over()) == (
        *(False, "", None, None, False),
    )
    assert made.grace_s(60.0) == 60.0
    assert made.pause_s(RECLAIM_REASON) == 0.0


def test_the_grace_of_the_engine_bounds_all_times(time):
    made = period(notice_grace_s=30.0)
    made.begin("SIGTERM")
    time.now_s += 5
    made.begin("SIGUSR1")
    assert made.why == "SIGTERM from the engine"
    assert made.engine_grace_s == 30.0
    assert made.stop_at_s() == 1000 + ANSWER_S
    assert made.left_s() == made.grace_s(60.0) == 30.0 - NOTICE_MARGIN_S - 5
    assert made.grace_s(10.0) == 10.0
    assert made.leave_at_s() == 1000 + 30.0 - NOTICE_MARGIN_S
    time.now_s += 100
    assert made.left_s() == 0.0
    assert made.is_over()


def test_without_an_engines_kill_the_stop_grace_and_a_final_margin_apply(time):
    made = period()
    made.begin("SIGTERM")
    assert (made.why, made.engine_grace_s, made.left_s()) == ("SIGTERM", None, 120.0)
    assert made.leave_at_s() == 1000 + 120.0 + AFTER_STOP_S


def test_without_an_engines_kill_an_upload_has_its_own_time_and_a_final_margin(time):
    made = period(upload_timeout_s=3600.0)
    made.begin("SIGTERM")
    assert made.leave_at_s(owes_results=True) == 1000 + 3600.0 + AFTER_STOP_S
    time.now_s += 500
    assert made.is_over()
    assert not made.is_over(owes_results=True)
    made.wait_for_release()
    assert made.leave_at_s() == 1500 + AFTER_STOP_S
    assert not made.is_over()
    time.now_s += 4000
    assert made.is_over(owes_results=True)


def test_an_upload_gets_no_more_than_the_grace_of_an_engine_that_kills(time):
    made = period(notice_grace_s=30.0, upload_timeout_s=3600.0)
    made.begin("SIGTERM")
    made.wait_for_release()
    assert made.leave_at_s(owes_results=True) == made.leave_at_s() == 1000 + 30.0 - NOTICE_MARGIN_S


def test_of_a_short_grace_programs_get_nine_tenths_at_least(time):
    made = period(notice_grace_s=10.0)
    made.begin("SIGTERM")
    assert made.left_s() == pytest.approx(9.05)
    assert made.leave_at_s() == pytest.approx(1000 + 9.05)


@pytest.mark.parametrize(
    ("is_engine_of_all", "reason", "pause_s"),
    [(True, RECLAIM_REASON, GANG_ECHO_S), (True, "stop_requested", 0.0), (False, RECLAIM_REASON, 0.0)],
)
def test_a_host_without_a_notice_waits_only_if_the_engine_signals_all_hosts(time, is_engine_of_all, reason, pause_s):
    assert period(notice_grace_s=30.0, engine_signals_all=is_engine_of_all).pause_s(reason) == pause_s


def test_a_host_with_a_notice_waits_for_the_engines_signal_to_its_programs(time):
    made = period(notice_grace_s=30.0)
    made.begin("SIGTERM")
    assert made.pause_s(RECLAIM_REASON) == ECHO_S
    time.now_s += 0.2
    assert made.pause_s("stop_requested") == pytest.approx(ECHO_S - 0.2)
    time.now_s += 1
    assert made.pause_s(RECLAIM_REASON) == 0.0


def test_nothing_is_waited_for_once_all_processes_were_signalled(time):
    made = period(notice_grace_s=30.0, engine_signals_all=True)
    made.begin("SIGTERM")
    made.hear_of_all()
    assert made.pause_s(RECLAIM_REASON) == 0.0
