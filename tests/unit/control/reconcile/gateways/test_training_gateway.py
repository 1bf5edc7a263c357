"""Reports of agents and programs on a training, and the authorisation to send them."""

from __future__ import annotations

import base64
import struct
from datetime import timedelta

import pytest

from clary.base.errors import WireError
from clary.contract.training_values import (
    MAX_FINDINGS,
    Finding,
    FindingKind,
    TrainingBatch,
    TrainingProgress,
    status_token,
)
from clary.control.reconcile.gateways import training_gateway
from clary.control.reconcile.gateways.training_gateway import STATUS_BURST, TrainingGateway
from clary.control.reconcile.hub import MAX_FINAL_METRICS
from clary.testing.control_plane import ControlPlane

AT_MS = 1_767_225_600_000
PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", 3, 2) + b"rest"


@pytest.fixture
async def plane(tmp_path):
    async with ControlPlane.open(tmp_path) as plane:
        await plane.create(num_hosts=2)
        await plane.passes()
        yield plane


@pytest.fixture
def gateway(plane):
    return TrainingGateway(plane.hub, plane.store.training, plane.store, plane.clock)


def job_of(plane):
    job = plane.hub.live_job("job")
    assert job is not None
    return job


def loss(step, value=0.5, name="loss"):
    return Finding(name=name, at_ms=AT_MS + step * 1000, step=step, value=value)


def batch(*findings, first=0, **changes):
    return TrainingBatch(first=first, findings=findings, **changes)


def said(percent, **metrics):
    listed = [{"name": name, "value": str(value)} for name, value in metrics.items()]
    return {"trainerStatus": {"progressPercentage": percent, "metrics": listed}}


async def steps_of(plane, name="loss"):
    return [value.step for value in await plane.store.training.newest_values("job", name, most=100)]


async def test_a_batch_that_arrives_twice_counts_once_in_table_and_record(plane, gateway):
    for _ in range(2):
        receipt = await gateway.append(job_of(plane), "algo-1", batch(loss(1), loss(2, 0.25), loss(3, None)))
        assert receipt.next == 3
    assert await steps_of(plane) == [1, 2, 3]
    (final,) = job_of(plane).final_metrics
    assert (final.name, final.value, final.step) == ("loss", 0.25, 2), "what is no number is no final value"


async def test_final_metrics_that_a_killed_service_lost_are_restored_from_the_repeated_batch(
    plane, gateway, monkeypatch
):
    class Killed(BaseException):
        """A crash of the service at this point, which no handler catches."""

    async def killed(*_, **__):
        raise Killed

    record_metrics = plane.hub.record_metrics
    monkeypatch.setattr(plane.hub, "record_metrics", killed)
    with pytest.raises(Killed):
        await gateway.append(job_of(plane), "algo-1", batch(loss(1), loss(2, 0.25)))
    monkeypatch.setattr(plane.hub, "record_metrics", record_metrics)
    assert job_of(plane).final_metrics == ()
    await gateway.append(job_of(plane), "algo-1", batch(loss(1), loss(2, 0.25)))
    assert [final.value for final in job_of(plane).final_metrics] == [0.25]
    assert await steps_of(plane) == [1, 2]


async def test_pictures_are_kept_as_bytes(plane, gateway):
    picture = Finding(kind=FindingKind.IMAGE, name="i", at_ms=AT_MS, data=base64.b64encode(PNG).decode())
    await gateway.append(job_of(plane), "algo-1", batch(picture))
    (kept,) = await plane.store.training.pictures("job", "image", "i", most=5)
    assert (await plane.store.training.picture("job", kept.id)).data == PNG


@pytest.mark.parametrize(
    "wrong",
    [
        batch(first=-1),
        batch(*[loss(1)] * (MAX_FINDINGS + 1)),
        batch(loss(1, name="")),
        batch(loss(1, name="x" * 256)),
        batch(loss(1, name="a\0")),
        batch(loss(1, name="\ud800")),
        batch(Finding(name="a", at_ms=-1)),
        batch(Finding(name="a", at_ms=2**60)),
        batch(Finding(name="a", at_ms=0, step=2**64)),
        batch(Finding(kind=FindingKind.IMAGE, name="a", at_ms=0, data="no base64!")),
        batch(loss(1), Finding(kind=FindingKind.HISTOGRAM, name="a", at_ms=0, data="[[2, 1, 3]]")),
        batch(Finding(kind=FindingKind.IMAGE, name="a", at_ms=0, file="x\0")),
        batch(progress=TrainingProgress(done=float("nan"))),
        batch(progress=TrainingProgress(done=1, eta_s=float("inf"))),
        batch(progress=TrainingProgress(done=1, total=2.0**80)),
    ],
)
async def test_an_impossible_batch_is_refused_and_no_part_of_it_is_stored(plane, gateway, wrong):
    with pytest.raises(WireError) as refusal:
        await gateway.append(job_of(plane), "algo-1", wrong)
    assert refusal.value.http_status == 400
    assert await plane.store.training.metric_facts("job") == []


async def test_the_record_holds_the_final_metrics_that_describe_shows_and_the_table_all(plane, gateway):
    many = [loss(1, name=f"m{number}") for number in range(MAX_FINAL_METRICS + 5)]
    await gateway.append(job_of(plane), "algo-1", batch(*many))
    assert len(job_of(plane).final_metrics) == MAX_FINAL_METRICS
    assert len(await plane.store.training.metric_facts("job")) == MAX_FINAL_METRICS + 5


async def test_a_report_of_a_deleted_job_is_refused_with_410(plane, gateway):
    job = job_of(plane)
    await plane.store.delete_job("job")
    with pytest.raises(WireError) as refusal:
        await gateway.append(job, "algo-1", batch(loss(1)))
    assert refusal.value.http_status == 410


async def test_a_program_is_authorised_by_its_own_token_only(plane, gateway):
    job = job_of(plane)
    token = status_token(job.plan["agent_token"], job="job", attempt=job.attempt, host="algo-1")
    assert gateway.authorize_status("job", job.attempt, "algo-1", token).name == "job"
    for wrong in ("", "x", job.plan["agent_token"], "\udc80", token[:-1]):
        with pytest.raises(WireError) as refusal:
            gateway.authorize_status("job", job.attempt, "algo-1", wrong)
        assert refusal.value.http_status == 403
    for name, attempt, host in (("other", 1, "algo-1"), ("job", 9, "algo-1"), ("job", job.attempt, "algo-9")):
        with pytest.raises(WireError) as refusal:
            gateway.authorize_status(name, attempt, host, token)
        assert refusal.value.http_status == 410


async def test_repeated_values_of_a_program_are_stored_when_they_change(plane, gateway):
    job = job_of(plane)
    for step, value in ((1, 0.5), (2, 0.5), (3, 0.25), (4, 0.25)):
        await gateway.take_status(job, "algo-1", said(step, loss=value, current_step=step, total_steps=100))
    assert await steps_of(plane) == [1, 3]
    (told,) = await plane.store.training.progress_of("job", job.attempt)
    assert (told.progress.done, told.progress.total, told.progress.source) == (4, 100, "kubeflow")


@pytest.mark.parametrize(
    ("image", "own", "objective", "kept"),
    [
        ("r/sagemaker-xgboost:1.7-1", [], "", 40),
        ("r/sagemaker-xgboost:1.7-1", [], "validation:rmse", 39),
        ("r/sagemaker-xgboost:1.7-1", ["a", "b"], "a", 38),
        ("generic:1", ["a"], "", 39),
    ],
)
async def test_metrics_that_the_request_defines_and_a_trials_objective_have_reserved_places(
    plane, gateway, image, own, objective, kept
):
    definitions = [{"Name": name, "Regex": "x=(.*)"} for name in own]
    specification = {"TrainingImage": image, "TrainingInputMode": "File"}
    specification |= {"MetricDefinitions": definitions} if own else {}
    parameters = {"_tuning_objective_metric": objective} if objective else {}
    await plane.create("own", AlgorithmSpecification=specification, HyperParameters=parameters)
    await plane.passes()
    job = plane.hub.live_job("own")
    await gateway.append(job, "algo-1", batch(*(loss(1, name=f"m{index}") for index in range(60))))
    assert len(plane.hub.live_job("own").final_metrics) == kept


async def test_a_loss_that_is_not_a_number_is_stored_once_and_is_no_final_metric(plane, gateway):
    job = job_of(plane)
    for step in (1, 2, 3):
        await gateway.take_status(job, "algo-1", said(step, loss="nan", current_step=step, total_steps=100))
    assert await steps_of(plane) == [1]
    assert job_of(plane).final_metrics == ()


async def test_a_program_with_ever_new_metric_names_uses_bounded_memory(plane, gateway, monkeypatch):
    monkeypatch.setattr(training_gateway, "MAX_SPOKEN_NAMES", 3)
    job = job_of(plane)
    for step in range(5):
        await gateway.take_status(job, "algo-1", said(step, **{f"m{step}": step, "loss": step, f"n{step}": step}))
    names = {fact.name: fact.num_values for fact in await plane.store.training.metric_facts("job")}
    assert names == {"m0": 1, "loss": 5, "n0": 1}


async def test_a_program_that_reports_too_often_is_throttled_and_accepted_again_later(plane, gateway):
    job = job_of(plane)
    for step in range(int(STATUS_BURST)):
        await gateway.take_status(job, "algo-1", said(1, current_step=step, total_steps=100))
    with pytest.raises(WireError) as refusal:
        await gateway.take_status(job, "algo-1", said(1))
    assert refusal.value.http_status == 429
    plane.clock.advance(timedelta(seconds=5).total_seconds())
    await gateway.take_status(job, "algo-1", said(99, current_step=99, total_steps=100))
    with pytest.raises(WireError) as refusal:
        await gateway.take_status(job, "algo-2", ["no status"])
    assert refusal.value.http_status == 400
