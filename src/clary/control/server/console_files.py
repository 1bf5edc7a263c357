"""Handler for the console's static files: pages, styles and modules of the package.

Where: the listener routes GET / of browsers and GET of all paths below /console to it. The console chooses the page by
the URL in the browser, so every path without the suffix of a file is answered with `index.html`: a deep link works in a
new window.

These files are not secret, and contain no text of jobs, which pages fetch as JSON. The content security policy forbids
inline scripts and styles, and other hosts.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from clary.control.wire.messages import HttpRequest, HttpResponse

FOLDER = Path(__file__).with_name("console")
PREFIX = "/console"
INDEX = "index.html"
MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".mjs": "text/javascript; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}
SAFETY_HEADERS = [
    (
        "Content-Security-Policy",
        "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; form-action 'self'; "
        "frame-ancestors 'none'",
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("X-Frame-Options", "DENY"),
]


@dataclass(frozen=True, kw_only=True)
class _File:
    version: tuple[int, int]  # modification time and size of the file
    body: bytes
    etag: str


class ConsoleFiles:
    """Serves the files of one folder."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder.resolve()
        self._files: dict[Path, _File] = {}

    async def handle(self, request: HttpRequest) -> HttpResponse:
        """Answer one request for `/` or a path below /console."""
        if request.method not in ("GET", "HEAD"):
            return _plain(405, "the console's files are only read")
        name = unquote(request.raw_path.removeprefix(PREFIX)).lstrip("/")
        media_type = MEDIA_TYPES.get(Path(name).suffix)
        if media_type is None:
            name, media_type = INDEX, MEDIA_TYPES[".html"]
        file = self._find(name)
        if file is None:
            return _plain(404, "the console has no such file")
        # Browsers revalidate each file and get 304, so that pages and modules are always of the same release.
        headers = [("Content-Type", media_type), ("ETag", file.etag), ("Cache-Control", "no-cache"), *SAFETY_HEADERS]
        if file.etag in (request.header("if-none-match") or ""):
            return HttpResponse(304, headers)
        return HttpResponse(200, headers, file.body)

    def _find(self, name: str) -> _File | None:
        """Return a file of the folder; None for a missing file, or a name that resolves to a path outside."""
        try:
            path = (self._folder / name).resolve(strict=True)
            if not path.is_relative_to(self._folder) or not path.is_file():
                return None
            status = path.stat()
            version = (status.st_mtime_ns, status.st_size)
            known = self._files.get(path)
            if known is None or known.version != version:
                body = path.read_bytes()
                etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
                known = self._files[path] = _File(version=version, body=body, etag=etag)
        except (OSError, ValueError, RuntimeError):  # no such file, a name with NUL, or a cycle of links
            return None
        return known


def _plain(status: int, words: str) -> HttpResponse:
    return HttpResponse(status, [("Content-Type", "text/plain; charset=utf-8"), *SAFETY_HEADERS], words.encode())
