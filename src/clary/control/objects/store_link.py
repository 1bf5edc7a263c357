"""The front's link to the store: connections, signatures with the store's own key, and errors if it does not answer.

Where: `front` opens it when the service starts and sends every request through it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import aiohttp

from clary.base.clock import Clock
from clary.base.errors import WireError
from clary.contract import sigv4
from clary.contract.launch_plan import Endpoint
from clary.contract.object_store import stored_names
from clary.control.objects.copying import COPY_SOURCE
from clary.control.objects.incoming_body import IncomingBody
from clary.control.objects.outgoing_bodies import Outgoing
from clary.control.objects.s3_request import S3Request
from clary.control.objects.store_client import (
    CONNECT_TIMEOUT_S,
    encode_query,
    open_session,
    sign_for_store,
    store_url,
)

STORE_TIMEOUT_S = 300.0  # longest wait for a byte from the store; completion of a large multipart upload is slow


class StoreLink:
    """Sends requests to one store.

    Args:
        endpoint: the store and its own key.
        clock: time of day for signatures.
    """

    def __init__(self, endpoint: Endpoint, clock: Clock) -> None:
        self._endpoint = endpoint
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None

    @property
    def region(self) -> str:
        """The store's region."""
        return self._endpoint.region

    @property
    def aliases_keys(self) -> bool:
        """Whether keys that the store would take for other keys have names of their own there (`stored_names`)."""
        return self._endpoint.aliases_keys

    async def open(self) -> None:
        """Open the pool of connections; the store need not answer yet."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=STORE_TIMEOUT_S)
        self._session = open_session(timeout)

    async def close(self) -> None:
        """Close all connections to the store; running requests break off."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def send(
        self, asked: S3Request, outgoing: Outgoing, body: IncomingBody | None = None
    ) -> aiohttp.ClientResponse:
        """Sign a request, send it and return the answer, whose body is not read yet.

        Args:
            asked: the request to the store.
            outgoing: headers and body.
            body: the client's body; if reading it fails, its own error is raised instead of the request's error that
                follows.
        Raises: WireError ServiceUnavailable, or the error of the client's body.
        """
        assert self._session is not None, "open() has not been called"
        parameters = [(name, value) for name, value in asked.query if not name.lower().startswith("x-amz-")]
        path, given = asked.path, outgoing.headers
        if self.aliases_keys:
            parameters = stored_names.stored_query(parameters)
            path = replace(asked, key=stored_names.stored_name(asked.key)).path
            given = [
                (name, stored_names.stored_copy_source(value) if name == COPY_SOURCE else value)
                for name, value in given
            ]
        query = encode_query(parameters)
        headers = sign_for_store(
            self._endpoint, asked.method, path, query, given, outgoing.payload_hash, self._clock.now()
        )
        try:
            return await self._session.request(
                asked.method,
                store_url(self._endpoint, path, query),
                headers=headers,
                data=outgoing.data,
                expect100=outgoing.expect_continue,
                allow_redirects=False,
            )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if body is not None and body.error is not None:
                raise body.error from error
            raise WireError(
                "ServiceUnavailable",
                f"The object store does not answer ({type(error).__name__}). Please try again.",
                http_status=503,
            ) from error

    async def head(
        self,
        bucket: str,
        key: str,
        query: Sequence[tuple[str, str]] = (),
        *,
        headers: Sequence[tuple[str, str]] = (),
    ) -> tuple[int, list[tuple[str, str]]]:
        """Request the headers of a bucket or object from the store (HEAD).

        Args:
            bucket: name.
            key: not encoded; empty for the bucket.
            query: names and values, such as versionId.
            headers: sent with the request, lower-case names.
        Returns: HTTP status and headers of the answer; an error status is returned, not raised.
        Raises: WireError ServiceUnavailable if the store does not answer.
        """
        asked = S3Request(method="HEAD", bucket=bucket, key=key, query=tuple(query))
        answer = await self.send(asked, Outgoing(headers=list(headers), payload_hash=sigv4.EMPTY_HASH, data=None))
        answer.release()
        return answer.status, list(answer.headers.items())
