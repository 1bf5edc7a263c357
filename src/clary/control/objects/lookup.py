"""Whether inputs exist, asked once and remembered for a moment.

Where: CreateTrainingJob refuses a job whose channel names nothing, before it is stored.
"""

from __future__ import annotations

import http

from clary.contract.clock import Clock
from clary.contract.errors import ObjectStoreError
from clary.control.objects.store_client import StoreClient

REMEMBER_S = 5.0  # only what was found is remembered: what is missing may be uploaded at any moment
MAX_REMEMBERED = 1000


class ObjectLookup:
    """Asks the store for the first key below a prefix."""

    def __init__(self, client: StoreClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._found: dict[tuple[str, str], float] = {}

    async def has_objects(self, bucket: str, prefix: str) -> bool:
        """Return whether any key of the bucket starts with the prefix; False for a bucket that does not exist.

        Raises: ObjectStoreError if the store does not answer or refuses to say.
        """
        now = self._clock.monotonic()
        if now - self._found.get((bucket, prefix), -REMEMBER_S) < REMEMBER_S:
            return True
        query = [("list-type", "2"), ("max-keys", "1"), ("prefix", prefix)]
        answer = await self._client.request("GET", bucket, query=query)
        if answer.status == http.HTTPStatus.NOT_FOUND:
            return False
        if answer.status != http.HTTPStatus.OK:
            raise ObjectStoreError(
                f"the object store answered {answer.status} when asked for s3://{bucket}/{prefix}",
                details={"bucket": bucket, "key": prefix, "status": answer.status},
            )
        found = b"<Contents>" in answer.body
        if found:
            if len(self._found) >= MAX_REMEMBERED:
                self._found.clear()
            self._found[bucket, prefix] = now
        return found
