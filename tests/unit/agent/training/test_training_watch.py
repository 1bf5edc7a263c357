"""Findings sent over HTTP to a service that loses responses, dies between storing and answering, or refuses."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from clary.agent.service_client import AgentAddress, ServiceClient
from clary.agent.training.host_training import HostTraining
from clary.agent.training.progress_watch import ProgressWatch
from clary.base.clock import SystemClock
from clary.testing.fake_service import FakeService
from clary.testing.launch_plans import make_plan

DEADLINE_S = 20.0


@pytest.fixture
def service(tmp_path: Path):
    with FakeService(make_plan(work_folder=str(tmp_path / "jobs" / "job-1" / "1"))) as service:
        yield service


@pytest.fixture
def metrics_file(tmp_path: Path) -> Path:
    folder = tmp_path / "ml" / "output/metrics/sagemaker"
    folder.mkdir(parents=True)
    return folder / "1.json"


@pytest.fixture
def training(service: FakeService, metrics_file: Path, tmp_path: Path):
    """Return a host's training with a real connection to the fake service."""
    address = AgentAddress(service_url=service.url, job=service.plan.job_name, attempt=1, host="algo-1")
    client, clock = ServiceClient(address, token=service.token), SystemClock()
    progress = ProgressWatch(clock)
    training = HostTraining(
        service.plan, host="algo-1", service=client, progress=progress, clock=clock, on_note=lambda note: None
    )
    training.prepare(tmp_path / "ml")
    training.begin(None, None)
    yield training
    training.abort()
    client.break_off()
    assert training.close(DEADLINE_S)
    client.close()


def write(metrics_file: Path, first: int, end: int) -> None:
    with metrics_file.open("a") as file:
        for step in range(first, end):
            print(
                f'{{"MetricName": "loss", "Value": 1, "Timestamp": {1_700_000_000 + step}, "Step": {step}}}', file=file
            )


def wait_for_steps(service: FakeService, end: int) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while len(service.findings) < end:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def steps_of(service: FakeService) -> list[int | None]:
    return [finding.step for finding in service.findings]


def test_an_answer_that_is_lost_doubles_no_value(service, training, metrics_file):
    service.lose_answers("training", 2)
    write(metrics_file, 0, 10)
    wait_for_steps(service, 10)
    write(metrics_file, 10, 15)
    training.ended()
    training.wait_flushed(lambda: False)
    assert steps_of(service) == list(range(15))


def test_values_outlive_a_service_that_dies_between_storing_and_answering(service, training, metrics_file):
    service.lose_answers("training", 1)
    write(metrics_file, 0, 5)
    wait_for_steps(service, 5)
    service.kill()
    write(metrics_file, 5, 10)
    training.ended()
    time.sleep(0.3)
    service.restart()
    training.wait_flushed(lambda: False)
    assert steps_of(service) == list(range(10))


def test_refused_values_are_dropped_and_later_values_arrive(service, training, metrics_file):
    service.fail("training", status=400, count=1)
    write(metrics_file, 0, 1)
    deadline_s = time.monotonic() + DEADLINE_S
    while training._watch._store.num_dropped == 0:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    write(metrics_file, 1, 4)
    training.ended()
    training.wait_flushed(lambda: False)
    assert steps_of(service) == [1, 2, 3]
    assert service.next_finding == 4, "the number of the value that was given up is not used again"


def test_the_wait_for_last_values_ends_at_its_deadline_where_the_service_hangs(
    service, training, metrics_file, monkeypatch
):
    monkeypatch.setattr("clary.agent.training.host_training.LAST_VALUES_S", 0.3)
    service.partition()
    write(metrics_file, 0, 1)
    training.ended()
    began_s = time.monotonic()
    training.wait_flushed(lambda: False)
    assert 0.3 <= time.monotonic() - began_s < DEADLINE_S
    service.heal()


def test_the_wait_for_last_values_ends_at_once_if_nothing_will_be_sent(service, training, metrics_file):
    service.partition()
    write(metrics_file, 0, 1)
    training.ended()
    began_s = time.monotonic()
    training.wait_flushed(lambda: True)
    assert time.monotonic() - began_s < DEADLINE_S / 4
    service.heal()
