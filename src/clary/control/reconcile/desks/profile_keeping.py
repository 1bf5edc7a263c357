"""Summarises complete profiles, and stores them below ProfilerConfig's S3OutputPath.

Where: the server runs it as a task. A separate process reads the traces, one profile at a time.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from clary.base.errors import ObjectStoreError
from clary.base.limited_runs import OutputTooLong
from clary.control.jobs.training_job import TrainingJob
from clary.control.limited_children import end_child, read_output
from clary.control.reconcile.desks.profile_desk import KeptRequest, ProfileDesk
from clary.control.reconcile.hub import JobHub

LOOK_S = 0.5
LIMIT_S = 600.0  # limit for reading the traces of all ranks
MAX_OBJECT_BYTES = 64 * 1024 * 1024  # largest uploaded file; larger files stay only in the state folder
SUMMARY_FILE = "summary.json"
_HTTP_OK = 200

_log = logging.getLogger(__name__)


FindJob = Callable[[str], Awaitable[TrainingJob | None]]


class Answer(Protocol):
    """An answer of the object store."""

    @property
    def status(self) -> int:
        """HTTP status."""


class ObjectWriter(Protocol):
    """The part of an object store's client that stores small objects."""

    async def request(self, method: str, bucket: str, *, key: str = "", body: bytes = b"") -> Answer:
        """Send one request. Raises: ObjectStoreError.

        Args:
            method: HTTP method.
            bucket: name of the bucket.
            key: key of the object; empty for the bucket itself.
            body: whole content of the object, held in memory.
        """


async def keep_profiles(
    desk: ProfileDesk, hub: JobHub, stored_job: FindJob, objects: ObjectWriter, *, interval_s: float = LOOK_S
) -> None:
    """Summarise and store profiles as they become ready, until cancelled; sleep without jobs and open profiles.

    Profiles are requested while their job has hosts, so without jobs and open profiles there is no work.

    Args:
        desk: the profiles.
        hub: knows the live jobs.
        stored_job: returns an ended job.
        objects: stores the files below S3OutputPath.
        interval_s: seconds between two passes.
    """
    await desk.load()
    while True:
        if not desk.open:
            await hub.wait_for_jobs()
        await asyncio.sleep(interval_s)
        for (name, number), request in sorted(desk.open.items()):
            job = hub.live_job(name)
            try:
                if await desk.is_ready(job, request):
                    desk.close_request(name, number)
                    await _finish(desk, job or await stored_job(name), name, request, objects)
            except Exception:  # noqa: BLE001 - boundary: one profile must not block others
                _log.exception("profile %d of %s could not be looked at", number, name)
                desk.close_request(name, number)


async def _finish(
    desk: ProfileDesk, job: TrainingJob | None, name: str, request: KeptRequest, objects: ObjectWriter
) -> None:
    folder = await desk.lay_out(name, request.number)
    if folder is None:  # the profile was deleted meanwhile
        return
    error = await look_at(folder)
    if error:
        summary = {"ranks": [], "errors": [error], "clocks": {}, "skew": {}, "merged": ""}
        (folder / SUMMARY_FILE).write_text(json.dumps(summary), encoding="utf-8")
    text = await asyncio.to_thread((folder / SUMMARY_FILE).read_text, encoding="utf-8")
    await desk.keep_summary(name, request.number, json.loads(text))
    config = job.request.get("ProfilerConfig") or {} if job is not None else {}
    if config.get("S3OutputPath"):
        await _store(folder, str(config["S3OutputPath"]), name, request.number, objects)


async def look_at(folder: Path, *, limit_s: float = LIMIT_S) -> str:
    """Have the traces of a profile read by another process; return why that failed, else an empty text."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-m",
        "clary.control.traces",
        str(folder),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        _, said = await asyncio.wait_for(read_output(process, "clary.control.traces"), limit_s)
    except TimeoutError:
        return f"the traces could not be read within {limit_s:g} s: ask for fewer steps or ranks"
    except OutputTooLong as error:
        return f"the traces could not be read: {error}"
    finally:
        if process.returncode is None:
            await end_child(process)
    if process.returncode:
        last = said.decode("utf-8", "replace").strip().rpartition("\n")[2]
        return f"the traces could not be read: {last[:500] or f'exit code {process.returncode}'}"
    return ""


async def _store(folder: Path, s3_path: str, name: str, number: int, objects: ObjectWriter) -> None:
    """Upload a profile's files below <S3OutputPath>/<job>/profiler-output/framework/<number>/, except large ones."""
    place = urlsplit(s3_path)
    above = place.path.removeprefix("/")
    parts = [above.rstrip("/")] if above else []
    prefix = "/".join([*parts, name, "profiler-output/framework", str(number)])
    for file in await asyncio.to_thread(_files, folder):
        if file.stat().st_size > MAX_OBJECT_BYTES:
            _log.warning("%s is too long for the object store, and stays at %s", file.name, file)
            continue
        try:
            body = await asyncio.to_thread(file.read_bytes)
            answer = await objects.request("PUT", place.netloc, key=f"{prefix}/{file.name}", body=body)
            if answer.status != _HTTP_OK:
                _log.warning("s3://%s/%s/%s was refused with HTTP %d", place.netloc, prefix, file.name, answer.status)
                return
        except ObjectStoreError as error:
            _log.warning("profile %d of %s is not stored in %s: %s", number, name, s3_path, error.message)
            return


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if file.suffix in (".gz", ".json") and file.name[0] != ".")
