"""Checks that inputs and buckets exist, with a short-lived cache.

Where: CreateTrainingJob checks channels and the buckets for results before it stores a job, and refuses a job if any
channel has no object, or a bucket is missing and is not made (`services.sagemaker.output_buckets`).
"""

from __future__ import annotations

import http
from typing import Protocol

from clary.base.clock import Clock
from clary.base.errors import ObjectStoreError
from clary.control.objects.store_client import StoreClient

REMEMBER_S = 5.0  # only existing keys are cached: a missing key may be uploaded at any moment
MAX_REMEMBERED = 1000
_BUCKET = None  # cached in place of a prefix: the bucket itself


class PublicKeys(Protocol):
    """Keys of public buckets of AWS."""

    def names(self, bucket: str) -> bool:
        """Whether a bucket of this name is read at AWS if it does not exist here."""

    async def has_objects(self, bucket: str, prefix: str) -> bool:
        """Return whether any key starts with the prefix. Raises: WireError ServiceUnavailable without an answer."""


class ObjectLookup:
    """Checks whether buckets exist, and whether prefixes have a key.

    Args:
        client: the store's.
        clock: time for the cache.
        public: public buckets of AWS, which are asked for keys if no bucket of their name exists here.
    """

    def __init__(self, client: StoreClient, clock: Clock, public: PublicKeys | None = None) -> None:
        self._client = client
        self._clock = clock
        self._public = public
        self._found: dict[tuple[str, str | None], float] = {}

    async def has_bucket(self, bucket: str) -> bool:
        """Return whether a bucket exists.

        Raises: ObjectStoreError if the store does not answer or refuses.
        """
        if self._remembers(bucket, _BUCKET):
            return True
        answer = await self._client.request("HEAD", bucket)
        if answer.status == http.HTTPStatus.NOT_FOUND:
            return False
        if answer.status != http.HTTPStatus.OK:
            raise ObjectStoreError(
                f"the object store answered {answer.status} when asked for bucket {bucket}: the access key "
                "that Clary uses must be allowed to look at the bucket",
                details={"bucket": bucket, "status": answer.status},
            )
        self._remember(bucket, _BUCKET)
        return True

    async def make_bucket(self, bucket: str) -> None:
        """Make a bucket unless it exists. Raises: ObjectStoreError if it cannot be made."""
        await self._client.ensure_bucket(bucket)
        self._remember(bucket, _BUCKET)

    async def has_objects(self, bucket: str, prefix: str) -> bool:
        """Return whether any key of the bucket starts with the prefix; False for a bucket that does not exist.

        Raises: ObjectStoreError if the store does not answer or refuses; WireError ServiceUnavailable if the bucket is
            a public one of AWS, which does not answer.
        """
        if self._remembers(bucket, prefix):
            return True
        query = [("list-type", "2"), ("max-keys", "1"), ("prefix", prefix)]
        answer = await self._client.request("GET", bucket, query=query)
        if answer.status == http.HTTPStatus.NOT_FOUND:
            public = self._public if self._public is not None and self._public.names(bucket) else None
            if public is None or not await public.has_objects(bucket, prefix):
                return False
            self._remember(bucket, prefix)
            return True
        if answer.status != http.HTTPStatus.OK:
            raise ObjectStoreError(
                f"the object store answered {answer.status} when asked for s3://{bucket}/{prefix}",
                details={"bucket": bucket, "key": prefix, "status": answer.status},
            )
        found = b"<Contents>" in answer.body
        if found:
            self._remember(bucket, prefix)
        return found

    def _remembers(self, bucket: str, prefix: str | None) -> bool:
        return self._clock.monotonic() - self._found.get((bucket, prefix), -REMEMBER_S) < REMEMBER_S

    def _remember(self, bucket: str, prefix: str | None) -> None:
        if len(self._found) >= MAX_REMEMBERED:
            self._found.clear()
        self._found[bucket, prefix] = self._clock.monotonic()
