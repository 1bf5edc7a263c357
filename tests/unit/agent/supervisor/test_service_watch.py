"""The heartbeat towards a service that is away, and towards callbacks that fail."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from clary.agent.fact_board import FactBoard
from clary.agent.service_client import ServiceRefused, ServiceUnreachable
from clary.agent.supervisor import service_watch
from clary.agent.supervisor.service_watch import Heartbeat
from clary.base.clock import SystemClock
from clary.contract.agent_protocol import Order, Report, ReportReceipt

PATIENCE_S = 60.0
DEFECT, SILENCE = ValueError("a defect of the client"), ServiceUnreachable("no answer")
RECEIPT = ReportReceipt(accepted=True, order_number=0)


class FakeTalk:
    """Gives the answers of a list, then receipts; `num_answers` counts all."""

    def __init__(self, *answers: Exception | ReportReceipt) -> None:
        self._answers = itertools.chain(answers, itertools.repeat(RECEIPT))
        self._num_listed = len(answers)
        self.num_answers = 0
        self.is_done = threading.Event()  # two receipts have followed the list

    def report(self, report: Report, *, timeout_s: float = 0.0) -> ReportReceipt:
        self.num_answers += 1
        if self.num_answers > self._num_listed + 2:
            self.is_done.set()
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def next_order(self, after: int, *, wait_s: float) -> Order | None:
        raise NotImplementedError

    def wake_orders(self) -> None:
        raise NotImplementedError


def run(
    talk: FakeTalk,
    *,
    on_receipt: Callable[[ReportReceipt], None] = lambda receipt: None,
    orphan_timeout_s: float = PATIENCE_S,
    disowned_timeout_s: float = PATIENCE_S,
) -> tuple[list[bool], list[str]]:
    """Return the calls of `on_away` and of `on_over` until the talk is done or the heartbeat has ended."""
    aways: list[bool] = []
    overs: list[str] = []

    def end(reason: str) -> None:
        overs.append(reason)
        talk.is_done.set()

    heartbeat = Heartbeat(
        talk,
        board=FactBoard(clock=SystemClock()),
        on_over=end,
        on_receipt=on_receipt,
        on_away=aways.append,
        interval_s=0.01,
        orphan_timeout_s=orphan_timeout_s,
        disowned_timeout_s=disowned_timeout_s,
    )
    heartbeat.start()
    assert talk.is_done.wait(PATIENCE_S)
    assert heartbeat.close(PATIENCE_S)
    return aways, overs


@pytest.mark.parametrize(
    ("answers", "aways"),
    [
        ((), []),
        ((SILENCE, SILENCE), [True, False]),
        ((RECEIPT, SILENCE, RECEIPT, SILENCE), [True, False, True, False]),
        ((DEFECT,), []),
        ((DEFECT, SILENCE), [True, False]),
        ((SILENCE, DEFECT, SILENCE), [True, False]),
    ],
)
def test_each_outage_is_told_once_at_its_begin_and_once_at_its_end(answers, aways) -> None:
    assert run(FakeTalk(*answers)) == (aways, [])


def test_a_receipt_that_cannot_be_followed_is_an_answer_of_the_service(caplog: pytest.LogCaptureFixture) -> None:
    receipts: list[ReportReceipt] = []

    def fail(receipt: ReportReceipt) -> None:
        receipts.append(receipt)
        raise ValueError("a defect of the supervisor")

    talk = FakeTalk(*[RECEIPT] * 20)
    assert run(talk, on_receipt=fail, orphan_timeout_s=0.0) == ([], [])
    assert len(receipts) >= 20
    assert "a receipt of the service could not be followed" in caplog.text


@pytest.mark.parametrize("answer", [SILENCE, DEFECT])
def test_a_host_whose_reports_do_not_arrive_for_too_long_is_given_up(answer: Exception) -> None:
    _, overs = run(FakeTalk(*[answer] * 1000), orphan_timeout_s=0.05)
    assert len(overs) == 1
    assert overs[0].startswith("the service has been away for ")


def refusal(status: int) -> ServiceRefused:
    return ServiceRefused(f"{status}: refused", details={"status": status})


def test_a_host_whose_token_is_refused_for_minutes_is_given_up_long_before_an_absent_service() -> None:
    _, overs = run(FakeTalk(*[refusal(403)] * 1000), disowned_timeout_s=0.05)
    assert len(overs) == 1
    assert overs[0].startswith("the service has refused this agent's token for ")


def test_a_service_that_refuses_the_name_by_which_it_is_asked_may_be_mended_meanwhile() -> None:
    misdirected = ServiceRefused("403: refused", details={"status": 403, "is_misdirected": True})
    _, overs = run(FakeTalk(*[misdirected] * 1000), disowned_timeout_s=0.05, orphan_timeout_s=0.5)
    assert [words.partition(" for ")[0] for words in overs] == ["the service has been away"]


@pytest.mark.parametrize("other", [SILENCE, DEFECT, RECEIPT, refusal(503), refusal(404)])
def test_a_token_that_is_refused_now_and_then_keeps_its_host(
    other: Exception | ReportReceipt, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = itertools.count()  # each look at the clock takes a second
    monkeypatch.setattr(service_watch, "time", SimpleNamespace(monotonic=lambda: float(next(seconds))))
    answers = [refusal(403), other] * 10
    _, overs = run(FakeTalk(*answers), orphan_timeout_s=1000.0, disowned_timeout_s=5.0)
    assert overs == []
    _, overs = run(FakeTalk(*answers, *[refusal(403)] * 10), orphan_timeout_s=1000.0, disowned_timeout_s=5.0)
    assert len(overs) == 1
