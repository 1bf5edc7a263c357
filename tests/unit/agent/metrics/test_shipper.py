"""Rows sent over HTTP to a service that fails, hangs, loses its rows, loses answers, or does not support rows."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from clary.agent.metrics.row_store import RowStore
from clary.agent.metrics.shipper import SampleShipper
from clary.agent.service_client import AgentAddress, ServiceClient
from clary.contract.metric_samples import SampleBatch, SampleReceipt
from clary.testing.fake_service import FakeService
from clary.testing.launch_plans import make_plan

DEADLINE_S = 20.0


@pytest.fixture
def service(tmp_path: Path):
    with FakeService(make_plan(work_folder=str(tmp_path / "jobs" / "job-1" / "1"))) as service:
        yield service


@pytest.fixture
def shipped(service: FakeService):
    """Return a shipper with a real connection to the fake service."""
    address = AgentAddress(service_url=service.url, job=service.plan.job_name, attempt=1, host="algo-1")
    client, store, unwanted = ServiceClient(address, token=service.token), RowStore(), threading.Event()
    shipper = SampleShipper(client, store=store, on_unwanted=unwanted.set, interval_s=0.05)
    shipper.start()
    yield shipper, store, unwanted
    shipper.abort()
    client.break_off()
    assert shipper.join(DEADLINE_S)
    client.close()


def append(store: RowStore, count: int) -> None:
    for _ in range(count):
        number = store.end
        store.add(1000 + number, {"host/cpu_percent": float(number)})


def stored(service: FakeService) -> list[float | None]:
    return [value for batch in service.batches for value in batch.columns[0]]


def wait_until(holds) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


def test_rows_arrive_in_order_exactly_once(service, shipped):
    _, store, unwanted = shipped
    for _ in range(5):
        append(store, 4)
        time.sleep(0.03)
    wait_until(lambda: service.next_row == 20)
    assert stored(service) == [float(n) for n in range(20)]
    wait_until(lambda: store.batch() is None)
    assert not unwanted.is_set()


def test_an_answer_that_is_lost_doubles_no_row(service, shipped):
    _, store, _ = shipped
    service.lose_answers("samples", 2)
    append(store, 10)
    wait_until(lambda: store.first == 10)
    append(store, 1)
    wait_until(lambda: service.next_row == 11)
    assert stored(service) == [float(n) for n in range(11)]


def test_rows_outlive_a_service_that_is_away(service, shipped):
    _, store, _ = shipped
    append(store, 3)
    wait_until(lambda: service.next_row == 3)
    service.kill()
    append(store, 5)
    time.sleep(0.3)
    service.restart()
    append(store, 2)
    wait_until(lambda: service.next_row == 10)
    assert stored(service) == [float(n) for n in range(10)]


def test_rows_outlive_a_service_that_fails(service, shipped):
    _, store, _ = shipped
    service.fail("samples", status=503, count=2)
    append(store, 5)
    wait_until(lambda: service.next_row == 5)
    assert stored(service) == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert store.num_dropped == 0


def test_wait_sent_ends_at_its_limit_while_the_service_hangs(service, shipped):
    shipper, store, _ = shipped
    service.partition()
    append(store, 5)
    began_s = time.monotonic()
    end_row = store.end
    shipper.flush()
    assert not shipper.wait_sent(end_row, 0.3)
    assert 0.3 <= time.monotonic() - began_s < DEADLINE_S
    service.heal()
    assert shipper.wait_sent(end_row, DEADLINE_S)


def test_a_flush_sends_before_the_next_batch_is_due(service):
    address = AgentAddress(service_url=service.url, job=service.plan.job_name, attempt=1, host="algo-1")
    client, store = ServiceClient(address, token=service.token), RowStore()
    shipper = SampleShipper(client, store=store, on_unwanted=lambda: None, interval_s=3600.0)
    shipper.start()
    append(store, 3)
    shipper.flush()
    assert shipper.wait_sent(3, DEADLINE_S)
    assert service.next_row == 3
    shipper.abort()
    assert shipper.join(DEADLINE_S)
    began_s = time.monotonic()
    assert not shipper.wait_sent(99, 2 * DEADLINE_S)
    assert time.monotonic() - began_s < DEADLINE_S, "nobody waits for a shipper that has ended"
    client.close()


def test_a_service_of_an_older_release_gets_one_request_and_one_log_line(service, shipped, caplog):
    caplog.set_level("INFO")
    shipper, store, unwanted = shipped
    service.fail("samples", status=404, count=1)
    append(store, 1)
    assert unwanted.wait(DEADLINE_S)
    append(store, 3)
    assert shipper.join(DEADLINE_S)
    assert service.next_row == 0
    assert [record.message for record in caplog.records if "metrics" in record.message] == [
        "the service takes no metrics of hosts: nothing is measured"
    ]


def test_the_end_of_the_attempt_ends_the_shipper(service, shipped):
    shipper, store, unwanted = shipped
    service.end_attempt(is_gone=True)
    append(store, 1)
    assert unwanted.wait(DEADLINE_S)
    assert shipper.join(DEADLINE_S)


def test_refused_rows_are_dropped_and_later_rows_arrive(service, shipped, caplog):
    _, store, _ = shipped
    service.fail("samples", status=400, count=2)
    append(store, 4)
    wait_until(lambda: store.first == 4)
    append(store, 2)
    wait_until(lambda: store.first == 6)
    append(store, 1)
    wait_until(lambda: service.next_row == 7)
    assert service.batches[-1].num_dropped == 6
    assert stored(service) == [6.0]
    assert sum("are given up" in record.message for record in caplog.records) == 1, "said once"


def test_a_service_that_lost_its_rows_gets_new_rows(service, shipped):
    _, store, _ = shipped
    append(store, 5)
    wait_until(lambda: store.first == 5)
    service.next_row = 0
    service.batches.clear()
    append(store, 2)
    wait_until(lambda: service.next_row == 7)
    assert stored(service) == [5.0, 6.0]


class FakeForgetfulService:
    """Always asks for rows that were acknowledged long ago."""

    def __init__(self) -> None:
        self.sent: list[SampleBatch] = []

    def send_samples(self, batch: SampleBatch) -> SampleReceipt:
        self.sent.append(batch)
        return SampleReceipt(next_row=0)


def test_a_service_that_never_advances_is_not_flooded_and_costs_no_memory():
    service, store = FakeForgetfulService(), RowStore()
    shipper = SampleShipper(service, store=store, on_unwanted=lambda: None, interval_s=0.01)
    append(store, 3)
    shipper.start()
    wait_until(lambda: store.first == 3)
    assert len(service.sent) == 3
    assert store.num_dropped == 3
    shipper.abort()
    assert shipper.join(DEADLINE_S)


class FakeBrokenService:
    """Fails with an unexpected exception."""

    def send_samples(self, batch: SampleBatch) -> SampleReceipt:
        raise KeyError("a defect")


def test_an_unexpected_error_ends_only_the_measurement(caplog):
    store, unwanted = RowStore(), threading.Event()
    shipper = SampleShipper(FakeBrokenService(), store=store, on_unwanted=unwanted.set, interval_s=0.01)
    append(store, 1)
    shipper.start()
    assert unwanted.wait(DEADLINE_S)
    assert shipper.join(DEADLINE_S)
    assert "metrics are not sent any more" in caplog.text
