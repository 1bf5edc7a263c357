"""Pages of a job's training, from a database; texts of programs are shown and never run."""

from __future__ import annotations

import json
import math
import struct
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from own_pages import FewParts
from server_parts import request

from clary.base.errors import WireError
from clary.contract.training_values import TrainingProgress, status_token
from clary.control.jobs.training_job import FinalMetric
from clary.control.reconcile.gateways.training_gateway import MAX_STATUS_BYTES, TrainingGateway
from clary.control.server.pages.training_page import tensorboard_page, training_page
from clary.control.store.training_pictures import Picture
from clary.testing.control_plane import ControlPlane

START = datetime(2026, 1, 1, tzinfo=UTC)
PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", 3, 2) + b"rest"


@pytest.fixture
async def plane(tmp_path):
    async with ControlPlane.open(tmp_path) as plane:
        await plane.create(num_hosts=1)
        await plane.passes()
        yield plane


@pytest.fixture
def services(plane):
    return SimpleNamespace(store=plane.store, clock=plane.clock)


@pytest.fixture
def job(plane):
    return plane.hub.live_job("job")


def value(step, number=0.5, name="loss"):
    return FinalMetric(name=name, value=number, at=START + timedelta(seconds=step), step=step)


def picture(kind, data, step=1):
    return Picture(kind=kind, tag="t", at=START, step=step, file="output/e", offset=3, size_bytes=9, data=data)


async def put(plane, *findings, progress=None):
    await plane.store.training.append("job", 1, "algo-1", first=0, findings=findings, progress=progress)


async def test_the_page_has_every_metric_with_its_extremes_and_the_progress(plane, services, job):
    await put(plane, value(1), value(2, math.nan), value(3, 0.25), progress=TrainingProgress(done=3, total=12))
    page = await training_page(services, job, {})
    (loss,) = page["metrics"]
    assert (loss["name"], loss["num_values"], loss["last"], loss["step"]) == ("loss", 3, 0.25, 3)
    assert (loss["least"], loss["greatest"]) == (0.25, 0.5)
    assert page["progress"]["percent"] == 25.0
    json.dumps(page, allow_nan=False)


async def test_points_of_one_metric_are_the_newest_points_in_order_of_time(plane, services, job):
    await put(plane, value(1), value(2, math.nan), value(3, 0.25))
    page = await training_page(services, job, {"name": "loss", "limit": "2"})
    assert [point[1:] for point in page["points"]] == [[2, None], [3, 0.25]]
    for limit in ("0", "-1", "10001", "x", ""):
        with pytest.raises(WireError):
            await training_page(services, job, {"name": "loss", "limit": limit})


async def test_tags_pictures_and_their_bytes_are_served(plane, services, job):
    await put(plane, picture("image", PNG), picture("histogram", b"[[0.0, 1.0, 2.0]]"))
    tags = json.loads((await tensorboard_page(services, job, {})).body)["tags"]
    assert [(tag["kind"], tag["tag"], tag["num_values"]) for tag in tags] == [("histogram", "t", 1), ("image", "t", 1)]
    assert (await training_page(services, job, {}))["pictures"] == tags
    (shown,) = json.loads((await tensorboard_page(services, job, {"tag": "t"})).body)["pictures"]
    assert (shown["step"], shown["file"], shown["offset"], shown["is_kept"]) == (1, "output/e", 3, True)
    answer = await tensorboard_page(services, job, {"image": str(shown["id"])})
    assert (answer.body, answer.header("content-type")) == (PNG, "image/png")
    assert answer.header("x-content-type-options") == "nosniff"
    assert "sandbox" in answer.header("content-security-policy")
    assert answer.header("cross-origin-resource-policy") == "same-origin"
    query = {"tag": "t", "kind": "histogram"}
    (shown,) = json.loads((await tensorboard_page(services, job, query)).body)["pictures"]
    assert shown["buckets"] == [[0.0, 1.0, 2.0]]


async def test_bytes_that_are_no_picture_are_not_served_as_one(plane, services, job):
    others = [
        b"<script>alert(1)</script>",
        b"\x89PNG\r\n\x1a\n<script>",
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        None,
    ]
    await put(plane, *(picture("image", data) for data in others), picture("histogram", PNG))
    for wanted in ("1", "2", "3", "4", "5", "99"):
        with pytest.raises(WireError) as refusal:
            await tensorboard_page(services, job, {"image": wanted})
        assert refusal.value.http_status == 404
    shown = json.loads((await tensorboard_page(services, job, {"tag": "t"})).body)["pictures"]
    assert [one["is_kept"] for one in shown] == [True, True, True, False]
    with pytest.raises(WireError) as refusal:
        await tensorboard_page(services, job, {"image": "1 or 1"})
    assert refusal.value.http_status == 400


async def test_a_status_is_accepted_only_at_its_path_with_its_token(plane, job):
    routes = FewParts(training=TrainingGateway(plane.hub, plane.store.training, plane.store, plane.clock))
    token = status_token(job.plan["agent_token"], job="job", attempt=1, host="algo-1")
    body = json.dumps({"trainerStatus": {"progressPercentage": 40}}).encode()
    path = "/clary/v1/status/job/1/algo-1"
    answer = await routes.handle(request(path, token=token, method="POST", body=body))
    assert answer.status == 200
    (told,) = await plane.store.training.progress_of("job", 1)
    assert told.progress.percent == 40.0
    for wrong, status in (
        (request(path, token=token), 404),
        (request(path + "/x", token=token, method="POST", body=body), 404),
        (request("/clary/v1/status/job/x/algo-1", token=token, method="POST", body=body), 404),
        (request(path, token="other", method="POST", body=body), 403),
        (request(path, token=None, method="POST", body=body), 403),
        (request(path, token=token, method="POST", body=b"{"), 400),
        (request(path, token=token, method="POST", body=b"[]"), 400),
        (request(path, token=token, method="POST", body=b"x" * (MAX_STATUS_BYTES + 1)), 400),
    ):
        with pytest.raises(WireError) as refusal:
            await routes.handle(wrong)
        assert refusal.value.http_status == status
