"""Pages of a job's training: values over steps, tags of TensorBoard, histograms and images.

Where: the answer to jobs/NAME/training and jobs/NAME/tensorboard.

    training                          every metric with its number of values, last, least and greatest, progress, tags
    training?name=loss&limit=1000     points of one metric: [at_ms, step, value]; value is null for NaN or infinity
    tensorboard                       tags of histograms and images, with the numbers of received and stored pictures
    tensorboard?kind=image&tag=x      their pictures, oldest first; a histogram's buckets are [left, right, count]
    tensorboard?image=ID              the bytes of one image
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from clary.base.errors import WireError
from clary.contract.picture_files import picture_facts
from clary.contract.training_values import FindingKind
from clary.control.jobs.training_job import FinalMetric, TrainingJob
from clary.control.jobs.training_status import progress_facts
from clary.control.server.edge.internal_http import json_answer
from clary.control.services.call import Services
from clary.control.services.training_progress import job_progress
from clary.control.store.training_pictures import Picture, TagFacts
from clary.control.wire.messages import HttpResponse

DEFAULT_POINTS = 1_000
MAX_POINTS = 10_000
DEFAULT_PICTURES = 200  # more than the number stored for a tag
_NUMBER = re.compile(r"[0-9]{1,15}")
# Whatever its type, the file can run no script, load nothing, and is not shown in another page's frame.
_IMAGE_HEADERS = [
    ("X-Content-Type-Options", "nosniff"),
    ("Content-Security-Policy", "default-src 'none'; sandbox; frame-ancestors 'none'"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
]


async def training_page(services: Services, job: TrainingJob, query: Mapping[str, str]) -> dict[str, Any]:
    """Return all metrics of a job with its progress, or the points of one metric. Raises: WireError 400.

    Args:
        services: store the values.
        job: job of the training, which may have ended.
        query: parameters, as in the module docstring.
    """
    name = query.get("name")
    if name is not None:
        limit = _limit(query, DEFAULT_POINTS)
        values = await services.store.training.newest_values(job.name, name, most=limit)
        return {"job": job.name, "name": name, "points": [_point(value) for value in values]}
    last = {metric.name: metric for metric in job.final_metrics}
    facts = await services.store.training.metric_facts(job.name)
    progress = await job_progress(services, job)
    metrics = []
    for fact in facts:
        newest = last.get(fact.name)
        if newest is None:
            newest = (await services.store.training.newest_values(job.name, fact.name, most=1))[0]
        metrics.append(
            {
                "name": fact.name,
                "num_values": fact.num_values,
                "first_at_ms": int(fact.first_at.timestamp() * 1000),
                "last_at_ms": int(fact.last_at.timestamp() * 1000),
                "last": _number(newest.value),
                "step": newest.step,
                "least": _number(fact.least),
                "greatest": _number(fact.greatest),
            }
        )
    return {
        "job": job.name,
        "status": job.status.value,
        "is_over": job.is_terminal,
        "progress": progress_facts(progress, now=services.clock.now(), is_over=job.is_terminal),
        "metrics": metrics,
        "pictures": [_tag(fact) for fact in await services.store.training.tags(job.name)],
    }


async def tensorboard_page(services: Services, job: TrainingJob, query: Mapping[str, str]) -> HttpResponse:
    """Return tags of a job's pictures, the pictures of one tag, or the bytes of an image. Raises: WireError 400, 404.

    Args:
        services: store the pictures.
        job: job of the training, which may have ended.
        query: parameters, as in the module docstring.
    """
    records = services.store.training
    if (wanted := query.get("image")) is not None:
        if not _NUMBER.fullmatch(wanted):
            raise WireError("ValidationException", f"image must be a number, got {wanted[:40]!r}")
        return _image_answer(job, wanted, await records.picture(job.name, int(wanted)))
    tag = query.get("tag")
    if tag is None:
        return json_answer({"job": job.name, "tags": [_tag(fact) for fact in await records.tags(job.name)]})
    kind = query.get("kind", FindingKind.IMAGE.value)
    pictures = await records.pictures(job.name, kind, tag, most=_limit(query, DEFAULT_PICTURES))
    return json_answer({"job": job.name, "kind": kind, "tag": tag, "pictures": [_shown(one) for one in pictures]})


def _image_answer(job: TrainingJob, wanted: str, picture: Picture | None) -> HttpResponse:
    data = b"" if picture is None or picture.kind != FindingKind.IMAGE else picture.data or b""
    facts = picture_facts(data)
    if facts is None:
        raise WireError("NotFound", f"{job.name} has no image {wanted} that is kept", http_status=404)
    return HttpResponse(200, [("Content-Type", facts.media_type), *_IMAGE_HEADERS], data)


def _shown(picture: Picture) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "id": picture.id,
        "at_ms": int(picture.at.timestamp() * 1000),
        "step": picture.step,
        "file": picture.file,
        "offset": picture.offset,
    }
    if picture.kind == FindingKind.HISTOGRAM:
        return {**shown, "buckets": json.loads(picture.data or b"[]")}
    return {**shown, "size_bytes": picture.size_bytes, "is_kept": picture.is_kept}


def _tag(fact: TagFacts) -> dict[str, Any]:
    return {
        "kind": fact.kind,
        "tag": fact.tag,
        "num_values": fact.num_values,
        "num_seen": fact.num_seen,
        "last_step": fact.last_step,
    }


def _point(value: FinalMetric) -> list[float | int | None]:
    return [int(value.at.timestamp() * 1000), value.step, _number(value.value)]


def _number(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None


def _limit(query: Mapping[str, str], default: int) -> int:
    text = query.get("limit", str(default))
    if not _NUMBER.fullmatch(text) or not 1 <= int(text) <= MAX_POINTS:
        raise WireError("ValidationException", f"limit must be 1 to {MAX_POINTS}, got {text[:40]!r}")
    return int(text)
