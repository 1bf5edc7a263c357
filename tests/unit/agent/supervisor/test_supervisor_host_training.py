"""Training files of a program reach the service during a host's life, and never delay the host."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from fake_steps import FakeSteps

from clary.agent.environments.config_files import status_token_file
from clary.agent.service_client import ServiceRefused, ServiceUnreachable
from clary.agent.training import finding_store, host_training, training_watch
from clary.agent.training.host_training import HostTraining
from clary.agent.training.progress_watch import ProgressWatch
from clary.base.clock import SystemClock
from clary.contract.agent_protocol import HostPhase, OrderKind
from clary.contract.ml_tree import MlTree
from clary.contract.training_values import TrainingBatch, TrainingReceipt, status_token
from clary.testing.launch_plans import make_plan

WAIT_S = 30.0


class FakeReceiver:
    """Accepts batches, or raises the given errors first."""

    def __init__(self, *errors: Exception) -> None:
        self.batches: list[TrainingBatch] = []
        self._errors = list(errors)

    def send_training(self, batch: TrainingBatch) -> TrainingReceipt:
        if self._errors:
            raise self._errors.pop(0)
        self.batches.append(batch)
        return TrainingReceipt(next=batch.first + len(batch.findings))


@pytest.fixture
def ml_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "ml"
    (folder / "output/metrics/sagemaker").mkdir(parents=True)
    return folder


def write(ml_folder: Path, step: int) -> None:
    row = {"MetricName": "loss", "Value": 1 / step, "Timestamp": 1_700_000_000 + step, "Step": step}
    with (ml_folder / "output/metrics/sagemaker/1.json").open("a") as file:
        print(json.dumps(row), file=file)


def training_of(ml_folder: Path, receiver, plan=None, notes=None, progress=None) -> HostTraining:
    training = HostTraining(
        plan or make_plan(),
        host="algo-1",
        service=receiver,
        progress=progress or ProgressWatch(SystemClock()),
        clock=SystemClock(),
        on_note=(notes if notes is not None else []).append,
    )
    training.prepare(ml_folder)
    return training


def test_values_and_progress_of_a_host_reach_the_service_before_its_program_counts_as_ended(
    service, host_of, ml_folder
):
    steps = FakeSteps()
    steps.ml_folder = ml_folder
    service.order_at(HostPhase.PREPARED, OrderKind.RUN)
    host = host_of(steps)
    program = host.program
    program.print("step 3/12\n")
    for step in range(1, 4):
        write(ml_folder, step)
    service.wait_for("values while it runs", lambda seen: len(seen.findings) == 3, WAIT_S)
    service.wait_for("progress", lambda seen: seen.progress is not None, WAIT_S)
    assert (service.progress.done, service.progress.total) == (3, 12)
    write(ml_folder, 4)
    program.end(0)
    service.wait_for_phase(HostPhase.EXITED, WAIT_S)
    assert [finding.step for finding in service.findings] == [1, 2, 3, 4]
    service.order(OrderKind.RELEASE)
    assert host.join() == 0


def test_values_wait_for_an_unreachable_service_and_arrive_once(ml_folder):
    receiver = FakeReceiver(ServiceUnreachable("away"), ServiceUnreachable("away"))
    training = training_of(ml_folder, receiver)
    training.begin(None, None)
    for step in range(1, 6):
        write(ml_folder, step)
    training.ended()
    training.wait_flushed(lambda: False)
    assert [finding.step for batch in receiver.batches for finding in batch.findings] == [1, 2, 3, 4, 5]
    training.abort()
    assert training.close(WAIT_S)


@pytest.mark.parametrize("is_known", [True, False])
def test_a_service_that_refuses_values_does_not_delay_the_end(ml_folder, is_known):
    refusal = ServiceRefused("no", details={"status": 400 if is_known else 404})
    receiver = FakeReceiver(refusal)
    training = training_of(ml_folder, receiver)
    write(ml_folder, 1)
    training.begin(None, None)
    training.ended()
    training.wait_flushed(lambda: False)
    assert receiver.batches == []
    training.abort()
    assert training.close(WAIT_S)


def test_an_unexpected_error_in_reading_does_not_fail_the_host(ml_folder, monkeypatch):
    training = training_of(ml_folder, None)
    write(ml_folder, 1)
    training.begin(None, None)
    training.ended()
    training.wait_flushed(lambda: False)
    training.abort()
    assert training.close(WAIT_S)


def test_a_local_path_outside_the_tree_is_noted(ml_folder):
    notes: list[str] = []
    document = {"S3OutputPath": "s3://bucket/boards", "LocalPath": "/srv/logs"}
    plan = make_plan(config_documents={"tensorboardoutputconfig": document})
    training = training_of(ml_folder, FakeReceiver(), plan, notes)
    training.begin(None, None)
    assert len(notes) == 1
    assert "/srv/logs" in notes[0]
    training.abort()
    assert training.close(WAIT_S)


def test_progress_is_reported_while_polls_of_files_pause_for_their_cost(ml_folder, monkeypatch):
    monkeypatch.setattr(training_watch, "MAX_LOAD", 1e-9)
    receiver = FakeReceiver()
    progress = ProgressWatch(SystemClock())
    training = training_of(ml_folder, receiver, progress=progress)
    training.begin(None, None)
    for step in (1, 2):
        progress.feed([f"step {step}/9"], rank=0)
        deadline_s = time.monotonic() + WAIT_S
        while not any(batch.progress and batch.progress.done == step for batch in receiver.batches):
            assert time.monotonic() < deadline_s, f"step {step} was not told"
            time.sleep(0.05)
    training.abort()
    assert training.close(WAIT_S)


def test_the_token_is_withdrawn_while_the_service_is_unreachable(ml_folder):
    file = status_token_file(MlTree(ml_folder))
    file.parent.mkdir(parents=True)
    file.write_text("token")
    training = training_of(ml_folder, FakeReceiver())
    assert file.read_text() == "token"
    training.take_note_of_service(is_away=True)
    assert file.read_text() == "", "without a token transformers posts nothing"
    training.take_note_of_service(is_away=False)
    plan = make_plan()
    assert file.read_text() == status_token(plan.agent_token, job=plan.job_name, attempt=plan.attempt, host="algo-1")
    file.unlink()
    file.parent.rename(file.parent.with_name("moved"))
    file.parent.symlink_to(file.parent.with_name("moved"))
    training.take_note_of_service(is_away=True)
    assert list(file.parent.iterdir()) == [], "a link of the program's is not followed"


def test_an_error_of_the_token_file_does_not_reach_the_heartbeat(ml_folder, monkeypatch):
    def fail(*_):
        raise KeyError("odd")

    training = training_of(ml_folder, FakeReceiver())
    monkeypatch.setattr(host_training, "write_whole", fail)
    training.take_note_of_service(is_away=True)


def test_too_many_names_are_reported_once(ml_folder, monkeypatch):
    monkeypatch.setattr(finding_store, "MAX_NAMES", 1)
    notes: list[str] = []
    receiver = FakeReceiver()
    training = training_of(ml_folder, receiver, notes=notes)
    with (ml_folder / "output/metrics/sagemaker/1.json").open("a") as file:
        for name in ("loss", "other", "third"):
            print(json.dumps({"MetricName": name, "Value": 1, "Timestamp": 1_700_000_000}), file=file)
    training.begin(None, None)
    training.ended()
    training.wait_flushed(lambda: False)
    assert [finding.name for batch in receiver.batches for finding in batch.findings] == ["loss"]
    assert len(notes) == 1
    assert "more names" in notes[0]
    training.abort()
    assert training.close(WAIT_S)
