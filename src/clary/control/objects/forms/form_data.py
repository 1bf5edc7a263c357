"""Streaming parser of a form with a file (multipart/form-data): small fields, then the file, never held whole.

Where: `front` parses forms before the caller is verified, so all parts before the file are bounded. Pure except for the
stream.
Source: RFC 7578; Amazon S3 API reference, "POST Object": fields before the file may have 20 KB in all, fields after it
are ignored.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from urllib.parse import unquote

from clary.base.errors import WireError

MAX_FORM_BYTES = 20 * 1024  # bytes before the content of the file
MAX_FIELDS = 100
MAX_REST_BYTES = 20 * 1024  # bytes after the file; further bytes are not read
FILE_FIELD = "file"
FORM_TYPE = "multipart/form-data"

_BOUNDARY = re.compile(r";\s*boundary=(?:\"([^\"]{1,70})\"|([^\s;\"]{1,70}))", re.IGNORECASE)
_DISPOSITION = re.compile(r"content-disposition:\s*form-data\s*(;.*)", re.IGNORECASE)
_PARAMETER = re.compile(r";\s*([a-z*]+)=(?:\"((?:[^\"\\]|\\.)*)\"|([^;\"]*))", re.IGNORECASE)


def boundary_of(content_type: str) -> bytes:
    """Return the boundary named by a Content-Type.

    Raises: WireError MalformedPOSTRequest if it names no boundary.
    """
    found = _BOUNDARY.search(content_type)
    text = (found[1] or found[2]) if found else ""
    if not text or not text.isascii():
        raise malformed("its Content-Type names no boundary")
    return text.encode()


@dataclass(frozen=True)
class _Part:
    name: str  # lower case
    file_name: str


class FormReader:
    """Reads one form in the order of its bytes.

    Args:
        pieces: the body.
        boundary: boundary between the parts of the form.
    """

    def __init__(self, pieces: AsyncIterator[bytes], boundary: bytes) -> None:
        self._pieces = pieces
        self._delimiter = b"\r\n--" + boundary
        self._buffer = b"\r\n"  # so that the first delimiter, too, follows a line end
        self._num_read = 0
        self.file_name = ""

    async def read_fields(self) -> dict[str, str]:
        """Return all fields before the file by their lower-case names; the file's content is next in the stream.

        Raises: WireError MalformedPOSTRequest, MaxPostPreDataLengthExceeded, InvalidArgument or IncompleteBody.
        """
        fields: dict[str, str] = {}
        if await self._take_until(self._delimiter):
            raise malformed("it does not begin with its boundary")
        while True:
            ending = await self._take(2)
            if ending == b"--":
                raise WireError("InvalidArgument", "POST requires exactly one file upload per request.")
            if ending != b"\r\n":
                raise malformed("a boundary is followed by something else than a line's end")
            part = _read_head(_text(await self._take_until(b"\r\n\r\n")))
            if part.name == FILE_FIELD:
                self.file_name = part.file_name
                return fields
            # If a field occurred twice, one value might be checked and the other used.
            if part.name in fields or len(fields) == MAX_FIELDS:
                raise WireError(
                    "InvalidArgument",
                    f"The form's field {part.name[:80]!r} occurs twice, or the form has too many fields.",
                )
            fields[part.name] = _text(await self._take_until(self._delimiter))

    async def read_file(self) -> AsyncIterator[bytes]:
        """Yield the content of the file.

        Raises: WireError IncompleteBody if the form ends before the file does.
        """
        kept = len(self._delimiter) - 1  # trailing bytes that may be the start of the delimiter
        while (end := self._buffer.find(self._delimiter)) < 0:
            if len(self._buffer) > kept:
                cut = len(self._buffer) - kept
                piece, self._buffer = self._buffer[:cut], self._buffer[cut:]
                yield piece
            self._buffer += await self._next()
        last, self._buffer = self._buffer[:end], b""
        if last:
            yield last

    async def skip_rest(self) -> None:
        """Read the fields after the file, such as buttons of the form, up to MAX_REST_BYTES."""
        num_bytes = 0
        async for piece in self._pieces:
            num_bytes += len(piece)
            if num_bytes > MAX_REST_BYTES:
                return

    async def _take(self, size: int) -> bytes:
        while len(self._buffer) < size:
            self._buffer += await self._next_of_form()
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken

    async def _take_until(self, mark: bytes) -> bytes:
        """Return the bytes before `mark`, and remove these bytes and `mark` from the buffer."""
        while (end := self._buffer.find(mark)) < 0:
            self._buffer += await self._next_of_form()
        taken, self._buffer = self._buffer[:end], self._buffer[end + len(mark) :]
        return taken

    async def _next_of_form(self) -> bytes:
        # The buffer may already contain much of the file: only searched bytes count against the limit.
        if self._num_read > MAX_FORM_BYTES:
            raise WireError(
                "MaxPostPreDataLengthExceeded",
                f"Your POST request fields preceding the upload file were too large: {MAX_FORM_BYTES} bytes at most.",
            )
        piece = await self._next()
        self._num_read += len(piece)
        return piece

    async def _next(self) -> bytes:
        try:
            return await anext(self._pieces)
        except StopAsyncIteration:
            raise WireError("IncompleteBody", "The form ends before its last boundary.") from None


def malformed(what: str) -> WireError:
    """Return the error of a body that is not a form."""
    return WireError(
        "MalformedPOSTRequest", f"The body of your POST request is not well-formed multipart/form-data: {what}."
    )


def _read_head(head: str) -> _Part:
    for line in head.split("\r\n"):
        found = _DISPOSITION.fullmatch(line)
        if found is None:
            continue
        parameters = {
            name.lower(): re.sub(r'\\(["\\])', r"\1", quoted) if quoted else plain.strip()
            for name, quoted, plain in _PARAMETER.findall(found[1])
        }
        name = parameters.get("name", "").lower()
        file_name = parameters.get("filename", "")
        if "filename*" in parameters:  # RFC 5987: charset, language and percent-encoded text
            file_name = unquote(parameters["filename*"].split("'")[-1])
        if name:
            return _Part(name, re.split(r"[/\\]", file_name)[-1])
    raise malformed("a part has no name")


def _text(content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise malformed("a field is not UTF-8") from error
