from __future__ import annotations

import math
import re
import threading
import time
from pathlib import Path

import pytest

from clary.agent.log import log_batches
from clary.agent.log.host_log import HostLog
from clary.agent.log.log_spool import LogSpool
from clary.agent.service_client import AgentAddress, ServiceClient
from clary.base.clock import SystemClock
from clary.contract.agent_protocol import LogReceipt
from clary.contract.launch_plan import MetricDefinition
from clary.testing.fake_service import FakeService
from clary.testing.launch_plans import make_plan

PATIENCE_S = 60.0
PLAN = make_plan(metric_definitions=(MetricDefinition(name="loss", regex=r"loss=(\S+)"),))


@pytest.fixture
def service():
    with FakeService(PLAN) as service:
        yield service


class LogUnderTest:
    """A host's log that sends to a FakeService."""

    def __init__(self, service: FakeService, folder: Path) -> None:
        self.notes: list[str] = []
        self.overs: list[str] = []
        address = AgentAddress(service_url=service.url, job=PLAN.job_name, attempt=1, host="algo-1")
        self.client = ServiceClient(address, token=service.token)
        self.folder = folder / "spool"
        self.log = HostLog(
            self.client,
            plan=PLAN,
            folder=self.folder,
            clock=SystemClock(),
            on_over=self.overs.append,
            on_note=self.notes.append,
        )

    def print(self, text: str) -> None:
        self.log.on_output("process", text.encode())

    def drain(self, timeout_s: float = 10.0, *, most_s: float = math.inf) -> None:
        self.log.drain(timeout_s, give_up=lambda: False, most_s=most_s)

    def close(self) -> None:
        self.client.break_off()
        assert self.log.close(5.0)
        self.client.close()


@pytest.fixture
def log(service: FakeService, tmp_path: Path):
    log = LogUnderTest(service, tmp_path)
    yield log
    log.close()
    assert not log.folder.exists()
    assert "log-shipper" not in {thread.name for thread in threading.enumerate()}


def test_a_line_is_readable_within_300_ms(log: LogUnderTest, service: FakeService) -> None:
    log.print("warm up: starts connection and matching process\n")
    service.wait_for_text("warm up")
    printed_at = time.time()
    log.print("now\n")
    assert service.wait_for_text("now").stored_at - printed_at < 0.3


def test_metrics_travel_with_their_line(log: LogUnderTest, service: FakeService) -> None:
    log.print("loss=0.5\n")
    metric = service.wait_for_text("loss").line.metrics[0]
    assert (metric.name, metric.value) == ("loss", 0.5)


def test_streams_do_not_mix_within_a_line_and_keep_rank_and_prefix(log: LogUnderTest, service: FakeService) -> None:
    log.log.open("a", rank=0, prefix="[1,mpirank:0,algo-1]<stdout>:")
    log.log.open("b", rank=1)
    for key, data in (("a", b"left "), ("b", b"right "), ("a", b"one\n"), ("b", b"two\n"), ("b", b"three")):
        log.log.on_output(key, data)
    log.log.on_output("b", b"")
    log.drain()
    assert [(item.line.rank, item.line.text) for item in service.lines] == [
        (0, "[1,mpirank:0,algo-1]<stdout>:left one"),
        (1, "right two"),
        (1, "three"),
    ]


def test_drain_returns_when_every_line_is_stored(log: LogUnderTest, service: FakeService) -> None:
    texts = [f"line {number}" for number in range(5_000)]
    log.print("".join(text + "\n" for text in texts))
    log.drain()
    assert service.texts == texts


def test_lost_answers_double_no_line(log: LogUnderTest, service: FakeService) -> None:
    service.lose_answers("logs", 3)
    for number in range(20):
        log.print(f"line {number}\n")
        time.sleep(0.01)
    log.drain()
    assert service.texts == [f"line {number}" for number in range(20)]


def test_a_killed_service_loses_and_doubles_no_line(log: LogUnderTest, service: FakeService) -> None:
    for number in range(300):
        log.print(f"line {number}\n")
        if number == 100:
            service.wait_for_text("line 100")
            service.kill()
        if number == 200:
            service.restart()
    log.drain()
    assert service.texts == [f"line {number}" for number in range(300)]


def test_printing_never_waits_for_the_service(log: LogUnderTest, service: FakeService) -> None:
    service.partition()
    started_s = time.monotonic()
    for number in range(2_000):
        log.print(f"line {number}\n")
    assert time.monotonic() - started_s < 5.0
    service.heal()
    log.drain()
    assert len(service.texts) == 2_000


def test_drain_gives_up_on_a_service_that_answers_but_stores_nothing(log: LogUnderTest, service: FakeService) -> None:
    service.fail("logs", status=500, count=1000)
    log.print("text\n")
    started_s = time.monotonic()
    log.drain(0.5)
    assert 0.4 < time.monotonic() - started_s < 3.0
    assert "did not take the last log lines" in log.notes[0]


def test_drain_waits_for_a_service_that_is_away(log: LogUnderTest, service: FakeService) -> None:
    log.print("first\n")
    log.drain()
    service.kill()
    log.print("second\n")
    threading.Timer(1.0, service.restart).start()
    log.drain(0.5, most_s=0.5)
    assert service.texts == ["first", "second"]


def test_drain_has_a_limit_even_if_lines_are_stored_all_the_time(
    log: LogUnderTest, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = log.client.send_logs

    def send_slowly(body: bytes) -> LogReceipt:
        time.sleep(0.05)
        return real(body)

    monkeypatch.setattr(log.client, "send_logs", send_slowly)
    monkeypatch.setattr(log_batches, "BATCH_LINES", 1)
    log.print("".join(f"line {number}\n" for number in range(200)))
    started_s = time.monotonic()
    log.drain(5.0, most_s=0.5)
    assert 0.4 < time.monotonic() - started_s < 3.0
    assert 0 < len(service.texts) < 100
    assert "did not take the last log lines" in log.notes[0]
    monkeypatch.undo()
    log.drain()
    assert len(service.texts) == 200, "the lines that are left follow"


def test_drain_ends_when_no_line_can_be_stored_any_more(log: LogUnderTest, service: FakeService) -> None:
    service.kill()
    log.print("text\n")
    log.log.drain(10.0, give_up=lambda: True)
    assert log.notes == []


def test_the_end_of_the_attempt_is_passed_on(log: LogUnderTest, service: FakeService) -> None:
    service.end_attempt(is_gone=True)
    log.print("text\n")
    log.drain()
    assert re.search("410", log.overs[0])


def test_cut_lines_are_reported_once(log: LogUnderTest, service: FakeService) -> None:
    log.print("x" * 200_000 + "\n" + "y" * 200_000 + "\n")
    log.drain()
    assert [text for text in service.texts if text.startswith("clary: ")] == [
        "clary: lines longer than 65536 bytes are shown in pieces"
    ]
    assert sum(text.count("x") for text in service.texts if set(text) == {"x"}) == 200_000


def test_unreadable_lines_of_the_spool_end_the_delivery_with_a_note(
    log: LogUnderTest, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.print("first\n")
    log.drain()
    monkeypatch.setattr(LogSpool, "read", lambda *_args, **_options: [])
    log.print("second\n")
    log.drain(PATIENCE_S)
    assert log.notes[0] == "log lines are not delivered any more: see agent.log of this host"
    assert service.texts == ["first"]


def test_output_behind_a_hanging_disk_delays_no_writer_and_arrives(
    log: LogUnderTest, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = threading.Event()
    real_append = LogSpool.append

    def append(spool: LogSpool, *arguments, **options) -> None:
        assert disk.wait(PATIENCE_S)
        real_append(spool, *arguments, **options)

    monkeypatch.setattr(LogSpool, "append", append)
    for number in range(1_000):
        log.print(f"line {number}\n")
    log.log.say("the supervisor goes on")
    assert service.texts == []
    disk.set()
    log.drain(PATIENCE_S)
    assert service.texts == [*(f"line {number}" for number in range(1_000)), "clary: the supervisor goes on"]


def test_lines_after_a_power_cut_of_the_service_follow_a_mark_of_the_lost_ones(
    service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults = LogSpool.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "segment_bytes", 1)  # stored lines are removed at once
    log = LogUnderTest(service, tmp_path)
    log.print("".join(f"line {number}\n" for number in range(20)))
    log.drain()
    del service.lines[5:]  # its disk had not written them
    log.print("after\n")
    service.wait_for_text("after")
    log.drain()
    assert log.notes == []
    texts = [item.line.text for item in service.lines]
    assert texts[:5] == [f"line {number}" for number in range(5)]
    assert re.match(r"clary: 15 lines were lost here: the service had stored them", texts[5])
    assert texts[6:] == ["after"]
    log.close()
