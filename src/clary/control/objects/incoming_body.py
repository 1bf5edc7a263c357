"""The body of one S3 request from a client, read once, and the first error in it.

Where: `front` creates it for each request; `outgoing_bodies` streams its pieces to the store.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
from aiohttp import web

from clary.base.errors import WireError
from clary.control.objects import payloads


class IncomingBody:
    """The body of one request, read once, and the first error in it."""

    def __init__(self, request: web.BaseRequest) -> None:
        self._request = request
        self._must_continue = request.headers.get("Expect", "").lower() == "100-continue"
        self.error: WireError | None = None

    @property
    def expects_continue(self) -> bool:
        """Whether the client waits for `100 Continue` before it sends the body."""
        return self._must_continue

    @property
    def is_cut_short(self) -> bool:
        """Whether the request has a body that was not read to its end."""
        return self._request.body_exists and not self._request.content.at_eof()

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives, after asking a waiting client to send it."""
        if self._must_continue:
            self._must_continue = False
            await self._request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            # `100 Continue` is not the answer, so the answer must still begin with its own headers.
            self._request.writer.output_size = 0
        async for piece in payloads.read_pieces(self._request.content):
            yield piece

    async def guarded(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Yield `pieces` and store their error, which the HTTP client library reports only as a broken connection.

        Raises: WireError of `pieces` itself, or IncompleteBody if the client breaks off.
        """
        try:
            async for piece in pieces:
                yield piece
        except WireError as error:
            self.error = error
            raise
        except (aiohttp.ClientError, web.RequestPayloadError, ConnectionError) as error:
            self.error = WireError("IncompleteBody", "The request body terminated unexpectedly.")
            raise self.error from error
