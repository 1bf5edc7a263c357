"""Download links of a job for a browser: model, output, code, and the files of its checkpoints.

Where: the answer to jobs/NAME/downloads.

    {"files": [{"what": "model", "name": "model.tar.gz", "size_bytes", "url"}], "num_files": 1, "is_counted": true,
     "valid_s": 600}

Only the first MOST_FILES files have a link; `num_files` counts at most MOST_COUNTED files; `is_counted` is false if
there are more, or if the first MOST_LISTED objects of the store, with those of checkpoint sets, are not all.

A link is a presigned request to this service; anyone with the link may use it until it expires. The browser saves the
answer as a file, whatever its name, because an HTML file written by a program must not open as a page of the console.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from clary.base.clock import Clock
from clary.base.errors import ObjectStoreError, WireError
from clary.contract.checkpoint_sets import OWN_FOLDER
from clary.contract.launch_plan import Credentials
from clary.contract.sigv4 import presign_url
from clary.control.jobs.job_request import JobRequest
from clary.control.jobs.training_job import TrainingJob
from clary.control.objects.listing import ListedObject, pages
from clary.control.objects.store_client import StoreClient
from clary.control.wire.messages import HttpRequest

MODEL, OUTPUT, CODE, CHECKPOINT = "model", "output", "code", "checkpoint"
VALID_S = 600
MOST_FILES = 200  # maximum number of links for one job; `clary cp` copies any number of files
MOST_COUNTED = 10_000  # counting takes about ten requests to the store, more if there are many checkpoint sets
MOST_LISTED = 100_000  # objects that one request lists, about a thousand with each request to the store


@dataclass(frozen=True, kw_only=True)
class _Place:
    what: str
    bucket: str
    key: str  # key of an object, or a prefix that ends with a slash


class DownloadsPage:
    """Makes download links.

    Args:
        client: lists the objects.
        credentials: sign the links.
        region: region named in links.
        clock: gives the time at which links become valid.
    """

    def __init__(self, client: StoreClient, *, credentials: Credentials, region: str, clock: Clock) -> None:
        self._client = client
        self._credentials = credentials
        self._region = region
        self._clock = clock

    async def page(self, job: TrainingJob, request: HttpRequest) -> dict[str, Any]:
        """Return the page. Raises: WireError with the status to send."""
        host = request.header("host")
        if not host:
            raise WireError("ValidationException", "the request has no Host header for the links to name")
        origin = f"{'https' if request.is_secure else 'http'}://{host}"
        files: list[dict[str, Any]] = []
        num_files, is_counted = 0, True
        try:
            async for place, item in self._objects(job):
                if item is None or num_files == MOST_COUNTED:
                    is_counted = False
                    break
                num_files += 1
                if len(files) < MOST_FILES:
                    files.append(self._link(origin, place, item))
        except ObjectStoreError as error:
            raise WireError("ServiceUnavailable", error.message, http_status=503) from error
        return {"files": files, "num_files": num_files, "is_counted": is_counted, "valid_s": VALID_S}

    async def _objects(self, job: TrainingJob) -> AsyncIterator[tuple[_Place, ListedObject | None]]:
        """Yield the job's files; then None if the listing ended at MOST_LISTED objects."""
        num_listed = 0
        for place in _places(job):
            async for listed in pages(self._client, place.bucket, place.key):
                for item in listed.objects:
                    is_folder = place.key.endswith("/")
                    if item.key == place.key if not is_folder else _is_file(item.key.removeprefix(place.key)):
                        yield place, item
                num_listed += len(listed.objects)
                if num_listed >= MOST_LISTED and listed.next_token:
                    yield place, None
                    return
                if not place.key.endswith("/"):
                    break  # an object is listed before longer keys that begin with its key

    def _link(self, origin: str, place: _Place, item: ListedObject) -> dict[str, Any]:
        is_folder = place.key.endswith("/")
        name = item.key.removeprefix(place.key) if is_folder else item.key.rpartition("/")[2]
        saved = "".join(_harmless(character) for character in name.rpartition("/")[2])
        disposition = quote(f'attachment; filename="{saved}"', safe="")
        kind = quote("application/octet-stream", safe="")
        path = f"/{quote(place.bucket, safe='')}/{quote(item.key, safe='/-_.~')}"
        return {
            "what": place.what,
            "name": name,
            "size_bytes": item.size_bytes,
            "url": presign_url(
                "GET",
                f"{origin}{path}?response-content-disposition={disposition}&response-content-type={kind}",
                credentials=self._credentials,
                region=self._region,
                now=self._clock.now(),
                expires_s=VALID_S,
            ),
        }


def _places(job: TrainingJob) -> Sequence[_Place]:
    """Return the keys and prefixes of a job's objects, the most wanted first."""
    request = JobRequest(job.request)
    checkpoints = request.checkpoint_s3_uri
    uris = [
        (MODEL, request.output.model_uri),
        (OUTPUT, request.output.output_uri),
        (CODE, request.code_uri or ""),
        (CHECKPOINT, f"{checkpoints.rstrip('/')}/" if checkpoints else ""),
    ]
    found = []
    for what, uri in uris:
        bucket, _, key = uri.removeprefix("s3://").partition("/")
        if uri.startswith("s3://") and bucket and key:
            found.append(_Place(what=what, bucket=bucket, key=key))
    return found


def _harmless(character: str) -> str:
    """Return the character if it is allowed in a quoted file name of a header, else a substitute."""
    if character in '"\\':
        return "'"
    return character if character.isascii() and character.isprintable() else "_"


def _is_file(name: str) -> bool:
    return bool(name) and not name.endswith("/") and name.partition("/")[0] != OWN_FOLDER
