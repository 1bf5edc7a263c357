"""Warnings, given when a job is created, about missing objects that its hosts will fetch.

Where: `training_jobs` calls it. Missing input channels are refused instead, as by the real service.
"""

from __future__ import annotations

from collections.abc import Iterator

from clary.contract.settings.hyperparameters import SUBMIT_DIRECTORY, platform_text
from clary.control.jobs.job_request import JobRequest
from clary.control.jobs.rules.debug_request import rule_plans
from clary.control.services.call import Call

SCHEME = "s3://"
_JOB_FAILS = "the job fails unless it is there when its hosts start"
_RULE_FAILS = "the rule ends in Error unless it is there when its program runs"


async def source_warnings(call: Call, job: JobRequest) -> tuple[str, ...]:
    """Return a sentence on each archive of code, and each file of a rule, that the object store lacks.

    Raises: ObjectStoreError.
    """
    found = []
    for what, uri, follows in _sources(job):
        bucket, _, key = uri.removeprefix(SCHEME).partition("/")
        if not await call.services.objects.has_objects(bucket, key):
            found.append(f"{what}: there is no object {uri}; {follows}")
    return tuple(found)


def _sources(job: JobRequest) -> Iterator[tuple[str, str, str]]:
    source = None if job.command is not None else platform_text(job.hyperparameters, SUBMIT_DIRECTORY)
    if source is not None and source.startswith(SCHEME):
        yield f"hyperparameter {SUBMIT_DIRECTORY}", source, _JOB_FAILS
    for plan in rule_plans(job.request):
        if plan.source_uri:
            yield f"rule {plan.name}: source_s3_uri", plan.source_uri, _RULE_FAILS
