"""Measurements during a host's life: from its preparation to its end, and never a delay."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_steps import FakeProgram, FakeSteps

from clary.agent.fact_board import FactBoard
from clary.agent.metrics import host_metrics
from clary.agent.metrics.host_metrics import HostMetrics
from clary.agent.metrics.sampling import Sampling
from clary.base.clock import SystemClock
from clary.contract.agent_protocol import HostPhase, OrderKind
from clary.contract.launch_plan import Isolation
from clary.contract.metric_samples import SampleBatch, SampleReceipt
from clary.contract.stop_limits import LAST_ROWS_S
from clary.testing.fake_service import FakeService
from clary.testing.launch_plans import make_plan

DEADLINE_S = 30.0


@pytest.fixture
def service(tmp_path: Path):
    folder = str(tmp_path / "jobs" / "job-1" / "1")
    plan = make_plan(work_folder=folder, metrics_interval_s=0.1, isolation=Isolation.PROCESSES)
    with FakeService(plan) as service:
        yield service


@pytest.fixture
def program_pid(monkeypatch):
    """Start a real process: the fake program starts no process."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    monkeypatch.setattr(FakeProgram, "init_pid", process.pid)
    yield process.pid
    process.kill()
    process.wait()


def values_of(service: FakeService, name: str) -> list[float | None]:
    values: list[float | None] = []
    for batch in service.batches:
        columns = dict(zip(batch.names, batch.columns, strict=True))
        values += columns.get(name, (None,) * len(batch.at_ms))
    return values


def wait_until(holds) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_rows_cover_the_life_of_a_host_and_the_last_are_stored_before_it_ends(service, host_of, program_pid):
    host = host_of(FakeSteps())
    service.wait_for_phase(HostPhase.PREPARED)
    time.sleep(0.3)
    service.order(OrderKind.RUN)
    program = host.program
    time.sleep(0.5)
    program.end(0)
    service.wait_for_phase(HostPhase.EXITED)
    phases = values_of(service, "host/phase")
    assert {2.0, 3.0} <= set(phases), "of PREPARED and RUNNING, in HostPhase's order"
    running = [row for row, phase in enumerate(phases) if phase == 3.0]
    assert any(values_of(service, "host/num_processes")[row] == 1.0 for row in running)
    assert values_of(service, "host/num_processes")[0] is None, "nothing runs yet"
    assert any(value is not None for value in values_of(service, "agent/cpu_percent"))
    assert any(value is not None for value in values_of(service, "host/disk_used_percent"))
    assert not [batch for batch in service.batches for name in batch.names if "network" in name]
    at_ms = [moment for batch in service.batches for moment in batch.at_ms]
    assert at_ms == sorted(at_ms)
    assert abs(at_ms[0] - time.time() * 1000) < DEADLINE_S * 1000
    service.order(OrderKind.RELEASE)
    assert host.join() == 0


def test_a_plan_without_measurements_gets_no_rows(tmp_path, host_of):
    with FakeService(make_plan(work_folder=str(tmp_path / "jobs" / "job-2" / "1"))) as other:
        assert other.plan.metrics_interval_s == 0
        board = FactBoard(clock=SystemClock())
        metrics = HostMetrics(other.plan, host="algo-1", board=board, service=FakeReceiver(), clock=SystemClock())
        metrics.start()
        metrics.begin(SimpleNamespace(init_pid=1, ranks_by_pid=dict), tmp_path)
        metrics.flush(LAST_ROWS_S)
        metrics.wait_flushed(lambda: False)
        metrics.ended()
        metrics.abort()
        assert metrics.close()


class FakeReceiver:
    """Accepts every batch."""

    def send_samples(self, batch: SampleBatch) -> SampleReceipt:
        return SampleReceipt(next_row=batch.first_row + len(batch.at_ms))


def test_a_service_without_support_for_rows_does_not_stop_a_host(service, host_of):
    service.fail("samples", status=404, count=99)
    service.lead_through_life()
    host = host_of(FakeSteps())
    host.program.end(0)
    assert host.join() == 0
    assert HostPhase.DONE in service.phases
    assert service.batches == []


def test_the_end_waits_briefly_for_rows_that_the_service_does_not_accept(service, host_of, monkeypatch):
    def hangs(_client, _batch):
        time.sleep(3.0)
        raise AssertionError("nobody waits for this")

    monkeypatch.setattr("clary.agent.service_client.ServiceClient.send_samples", hangs)
    service.lead_through_life()
    host = host_of(FakeSteps())
    program = host.program
    ended_s = time.monotonic()
    program.end(0)
    service.wait_for_phase(HostPhase.EXITED)
    took_s = time.monotonic() - ended_s
    assert took_s < LAST_ROWS_S + 10.0
    service.wait_for_phase(HostPhase.DONE)
    host.join()


def test_a_failing_measurement_does_not_stop_a_host(service, host_of, monkeypatch, caplog):
    def breaks(_sampling):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Sampling, "start", breaks)
    service.lead_through_life()
    host = host_of(FakeSteps())
    host.program.end(0)
    assert host.join() == 0
    assert service.batches == []
    assert "is not measured" in caplog.text


def test_a_long_preparation_is_measured_and_its_abort_ends_the_measurement(service, host_of):
    host = host_of(FakeSteps(hold=["environment"]))
    service.wait_for("rows of the preparation", lambda service: service.batches, DEADLINE_S)
    assert set(values_of(service, "host/phase")) == {1.0}
    service.end_attempt()
    assert host.join() == 0


def test_each_attempt_numbers_its_rows_from_0(tmp_path):
    for attempt in (1, 2):
        taken: list[SampleBatch] = []

        class FakeKeepingReceiver(FakeReceiver):
            def send_samples(self, batch: SampleBatch, taken: list[SampleBatch] = taken) -> SampleReceipt:
                taken.append(batch)
                return super().send_samples(batch)

        plan = make_plan(work_folder=str(tmp_path / str(attempt)), metrics_interval_s=0.1)
        board = FactBoard(clock=SystemClock())
        metrics = HostMetrics(plan, host="algo-1", board=board, service=FakeKeepingReceiver(), clock=SystemClock())
        metrics.start()
        time.sleep(0.3)
        metrics.flush(LAST_ROWS_S)
        metrics.wait_flushed(lambda: False)
        wait_until(lambda taken=taken: taken)
        metrics.abort()
        assert metrics.close()
        assert taken[0].first_row == 0


def test_gpus_are_measured_only_if_the_plan_has_gpus(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(host_metrics, "GpuSource", lambda *args, **options: made.append(args))
    monkeypatch.setattr(host_metrics.shutil, "which", lambda _name: "/usr/bin/nvidia-smi")
    plan = make_plan(work_folder=str(tmp_path), metrics_interval_s=0.1)
    board = FactBoard(clock=SystemClock())
    metrics = HostMetrics(plan, host="algo-1", board=board, service=FakeReceiver(), clock=SystemClock())
    metrics.start()
    metrics.abort()
    assert metrics.close()
    assert made == []
