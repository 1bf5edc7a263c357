"""Checks or creates a job's output buckets before the job starts, so that no result is lost at its end."""

from __future__ import annotations

import re
from http import HTTPStatus

from clary.base.errors import ObjectStoreError, WireError
from clary.control import effects
from clary.control.jobs.job_grants import output_buckets
from clary.control.jobs.job_request import JobRequest
from clary.control.objects.forms.subresources import STORE_PAGES
from clary.control.services.call import Call

# Also accepts names of old buckets; names of new buckets have no capitals and no underscores.
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]|\.(?!\.)){1,253}[A-Za-z0-9]")


async def require_output_buckets(call: Call, request: JobRequest, *, before: JobRequest | None = None) -> None:
    """Create the buckets of a job's outputs in the embedded store; in any other store they must exist.

    Args:
        call: call that creates or updates the job.
        request: the job's request.
        before: the job's request before an update; its buckets were checked already.
    Raises: WireError(ValidationException) for an invalid name, and for a bucket that does not exist and is not created;
        ObjectStoreError if the store does not answer or fails.
    """
    objects, url = call.services.objects, call.services.settings.s3_endpoint_url
    looked_for = () if before is None else output_buckets(before)
    for bucket in output_buckets(request):
        if bucket in looked_for:
            continue
        if not _NAME.fullmatch(bucket):
            raise _refused(bucket, "cannot exist: that is not a valid bucket name")
        if not url and bucket in STORE_PAGES:
            raise _refused(bucket, "cannot exist: the embedded object store has a page of this name")
        if await objects.has_bucket(bucket):
            continue
        if url:
            raise _refused(bucket, f"does not exist in the object store {url}. Make it there, or name one that exists")
        try:
            await objects.make_bucket(bucket)
            effects.note()
        except ObjectStoreError as error:
            status = error.details.get("status")
            if status is None or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                raise  # the store does not answer, or fails temporarily
            raise _refused(
                bucket,
                f"does not exist and cannot be made: the object store answered {status}. Names of buckets "
                "have 3 to 63 lower-case letters, digits, dots and hyphens",
            ) from error


def _refused(bucket: str, why: str) -> WireError:
    return WireError("ValidationException", f"Bucket {bucket!r}, which the job is to write to, {why}.")
