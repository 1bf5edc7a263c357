"""Finds and downloads the parts of a job that `clary cp` copies.

Where: `cp` parses the arguments. Keys of objects become paths below the given folder, never outside of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clary.agent.archives import extract_tar
from clary.base.disk_space import disk_errors_named
from clary.base.errors import ClaryError, Fault, WireError
from clary.cli.connection import Connection
from clary.contract.checkpoint_sets import OWN_FOLDER
from clary.contract.object_store import ObjectStore, parse_s3_uri
from clary.control.jobs.job_request import JobRequest

MODEL, OUTPUT, CHECKPOINTS, LOGS, CODE = "model", "output", "checkpoints", "logs", "code"
THINGS = {
    MODEL: "what the program left in /opt/ml/model",
    OUTPUT: "what it left in /opt/ml/output/data, and its failure file",
    CHECKPOINTS: "what lies at CheckpointConfig.S3Uri",
    LOGS: "the whole log, a file for each host",
    CODE: "the code that the job was given",
}


@dataclass(frozen=True, kw_only=True)
class Copied:
    """One file that was copied."""

    source: str  # s3:// URI, or the log's stream
    path: Path
    size_bytes: int
    links_left_out: tuple[str, ...] = ()  # of an unpacked archive: links that lead to no place in the folder


def place_of(connection: Connection, job: str, thing: str) -> str:
    """Return the URI of a part; a URI that ends with a slash is a prefix.

    Args:
        connection: connection to the service.
        job: name of the job.
        thing: the part, a key of THINGS other than LOGS.
    Raises: WireError NotFound saying why the job has no such part.
    """
    request = JobRequest(connection.job_page(job, "request")["request"])
    if thing == CHECKPOINTS:
        uri = request.checkpoint_s3_uri
        if uri is None:
            raise WireError("NotFound", f"{job} has no CheckpointConfig: it keeps no checkpoints in S3")
        return uri.rstrip("/") + "/"
    if thing == CODE:
        uri = request.code_uri
        if uri is None:
            raise WireError(
                "NotFound",
                f"{job} was given no code by an SDK: it has neither sagemaker_submit_directory nor "
                "the channels code and sm_drivers",
            )
        return uri
    return request.output.model_uri if thing == MODEL else request.output.output_uri


def fetch(store: ObjectStore, uri: str, target: Path, *, unpacks: bool, what: str) -> Iterator[Copied]:
    """Copy an object, or everything below a prefix, and yield each file once it is copied.

    Args:
        store: client of the object store, with the owner's key.
        uri: URI of the object, or a prefix that ends with a slash.
        target: file or folder; an archive keeps its name in an existing folder.
        unpacks: whether an archive is unpacked into the folder `target`.
        what: name of the part for messages: `the model of job-1`.

    Raises: WireError NotFound if no object exists there; ClaryError for a key that is not a valid path, or a full disk;
        OSError for another file that cannot be written.
    """
    place = parse_s3_uri(uri)
    if uri.endswith("/"):
        yield from _fetch_folder(store, place.bucket, place.key, target, what=what)
        return
    facts = store.head(place.bucket, place.key)
    if facts is None:
        raise WireError("NotFound", f"{what} does not exist: there is no object {uri}")
    if unpacks:
        with store.open_reader(place.bucket, place.key, etag=facts.etag) as stream:
            unpacked = extract_tar(stream, target, label=uri, is_for_person=True)
        yield Copied(source=uri, path=target, size_bytes=unpacked.size_bytes, links_left_out=unpacked.links_left_out)
        return
    path = target / Path(place.key).name if target.is_dir() else target
    path.parent.mkdir(parents=True, exist_ok=True)
    size_bytes = store.download(place.bucket, place.key, path, size_bytes=facts.size_bytes, etag=facts.etag)
    yield Copied(source=uri, path=path, size_bytes=size_bytes)


def fetch_logs(connection: Connection, job: str, target: Path) -> Iterator[Copied]:
    """Write the log of each host to a file in the folder `target`, and yield each file.

    Args:
        connection: connection to the service.
        job: name of the job.
        target: folder, made with its parents if it is missing; files are called HOST.log.
    Raises: ClaryError (fault USER) for a target that is a file; AgentError for a full disk; OSError for another file
        that cannot be written.
    """
    hosts = connection.job_page(job, "log-lines", {"limit": 1})["hosts"]
    if target.exists() and not target.is_dir():
        raise ClaryError(
            f"{target} is a file: logs are copied into a folder, as a file for each host; name a folder as DEST",
            fault=Fault.USER,
        )
    target.mkdir(parents=True, exist_ok=True)
    for host in hosts:
        path = target / _inside(f"{host}.log", f"the log of {host} of {job}")
        with disk_errors_named(path, needed_bytes=None), path.open("w", encoding="utf-8") as file:
            for line in _lines(connection, job, host):
                file.write(f"{line['text']}\n")
        yield Copied(source=f"{job}/{host}", path=path, size_bytes=path.stat().st_size)


def _lines(connection: Connection, job: str, host: str) -> Iterator[Mapping[str, Any]]:
    tokens: dict[str, str] = {}
    while True:
        query = {"host": host, **{f"after.{stream}": token for stream, token in tokens.items()}}
        page = connection.job_page(job, "logs", query)
        yield from page["lines"]
        if page["sure_until_ms"] is None:
            return
        tokens = page["tokens"]


def _fetch_folder(store: ObjectStore, bucket: str, prefix: str, target: Path, *, what: str) -> Iterator[Copied]:
    is_empty = True
    for item in store.list_objects(bucket, prefix):
        name = item.key.removeprefix(prefix)
        if name.endswith("/") or name.partition("/")[0] == OWN_FOLDER:
            continue  # folder objects that tools create, and Clary's own files next to checkpoints
        is_empty = False
        path = target / _inside(name, f"s3://{bucket}/{item.key}")
        path.parent.mkdir(parents=True, exist_ok=True)
        store.download(bucket, item.key, path, size_bytes=item.size_bytes, etag=item.etag)
        yield Copied(source=f"s3://{bucket}/{item.key}", path=path, size_bytes=item.size_bytes)
    if is_empty:
        raise WireError("NotFound", f"{what} does not exist: there is nothing below s3://{bucket}/{prefix}")


def _inside(name: str, uri: str) -> Path:
    """Return a key as a relative path without `..`. Raises: ClaryError (fault USER)."""
    parts = name.split("/")
    if any(part in ("", os.curdir, os.pardir) or "\0" in part for part in parts):
        raise ClaryError(f"{uri} is not a path of a file below a folder, and is not copied", fault=Fault.USER)
    return Path(*parts)
