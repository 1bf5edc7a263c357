"""The page `rerun` of a job: creates a job like it, as `clary rerun` does.

Where: the answer to POST jobs/NAME/rerun.

    {"name", "hyperparameters": {}, "environment": {}, "instance_type", "instance_count"}: each may be missing
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from clary.base.errors import WireError
from clary.control.jobs.job_names import next_name
from clary.control.jobs.repeated_requests import Changes, repeated
from clary.control.jobs.training_job import TrainingJob
from clary.control.services.call import Call, Services
from clary.control.services.dispatch import dispatch
from clary.control.wire.models import Protocol, service
from clary.control.wire.validation import validate

MEMBERS = ("name", "hyperparameters", "environment", "instance_type", "instance_count")
SERVICE, OPERATION = "sagemaker", "CreateTrainingJob"


async def rerun(services: Services, job: TrainingJob, body: Any) -> dict[str, Any]:
    """Create the new job and return its name. Raises: WireError with the status to send.

    Args:
        services: create the job as the API does, by all its rules.
        job: the job to repeat, which may still run; the new job gets its tags.
        body: changes in the form of the module docstring; an empty object changes only the name.
    """
    wanted = _checked(body)
    name = wanted.get("name") or next_name(job.name, services.clock.now())
    changes = Changes(
        hyperparameters=wanted.get("hyperparameters") or {},
        environment=wanted.get("environment") or {},
        instance_type=wanted.get("instance_type"),
        instance_count=wanted.get("instance_count"),
    )
    try:
        request, notes = repeated(job.request, name=name, changes=changes)
    except ValueError as error:
        raise WireError("ValidationException", f"{job.name}: {error}") from error
    tags = await services.store.get_tags(job.arn)
    params = {**request, **({"Tags": [{"Key": key, "Value": value} for key, value in tags.items()]} if tags else {})}
    validate(service(SERVICE).operation(OPERATION, Protocol.JSON_1_1), params)
    call = Call(
        services=services, params=params, region=services.settings.region, access_key_id="", request_id=str(uuid4())
    )
    await dispatch(SERVICE, OPERATION, call)
    return {"name": name, "notes": list(notes)}


def _checked(body: Any) -> Mapping[str, Any]:
    if not isinstance(body, Mapping) or not set(body) <= set(MEMBERS):
        raise WireError("ValidationException", f"expected an object with {', '.join(MEMBERS)}, each optional")
    for member in ("hyperparameters", "environment"):
        pairs = body.get(member)
        if pairs is not None and not _is_texts(pairs):
            raise WireError("ValidationException", f"{member} must be an object whose values are strings")
    for member, kind in (("name", str), ("instance_type", str), ("instance_count", int)):
        value = body.get(member)
        if value is not None and type(value) is not kind:
            raise WireError("ValidationException", f"{member} must be {kind.__name__}, got {type(value).__name__}")
    return body


def _is_texts(pairs: Any) -> bool:
    if not isinstance(pairs, Mapping):
        return False
    return all(isinstance(key, str) and isinstance(value, str) for key, value in pairs.items())
