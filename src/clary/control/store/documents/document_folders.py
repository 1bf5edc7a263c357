"""Moves numbered documents of older releases, files in `<home>/KIND/JOB/NUMBER/`, into the database.

Where: the service calls it at each start, before any request is answered.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import shutil
from pathlib import Path
from typing import Any

from clary.base.passing_errors import is_passing
from clary.control.store.documents.numbered_documents import NumberedDocuments
from clary.control.store.errors import JobNotFound

_NUMBER = re.compile(r"[0-9]{1,18}")

_log = logging.getLogger(__name__)


async def take_over(folder: Path, documents: NumberedDocuments, *, first: str, keeps_files: bool = False) -> int:
    """Store the documents of a folder that the database lacks; return how many numbers were stored.

    The files of a number are stored together, and removed afterwards unless `keeps_files`; if the service is killed in
    between, its next start completes the work. Files of jobs that a restored database does not have are moved to
    `<home>/set-aside/KIND/`.

    Args:
        folder: holds one folder per job; it may be missing.
        documents: the database's documents of this kind.
        first: stem of the file that every valid number has.
        keeps_files: whether files stay, because the folder also has files other than documents.
    Raises: StoreError if the database fails; then the files stay.
    """
    num_stored = 0
    known: dict[str, list[int]] = {}
    for place in await asyncio.to_thread(_places, folder):
        job_name, number = place.parent.name, int(place.name)
        if job_name not in known:
            known[job_name] = await documents.numbers(job_name)
        if number in known[job_name]:
            if not keeps_files:
                await asyncio.to_thread(_remove, place)
            continue
        if known[job_name] and number < min(known[job_name]):
            continue  # newer numbers have replaced it, but a killed service left its folder: do not restore it
        try:
            found = await asyncio.to_thread(_read, place)
        except OSError as error:
            _log.warning("%s cannot be read now; the next start takes it over: %s", place, error)
            continue
        if first not in found:
            continue
        try:
            await documents.put(job_name, number, found)
        except JobNotFound:
            await asyncio.to_thread(_set_aside, place)
            continue
        num_stored += 1
        if not keeps_files:
            await asyncio.to_thread(_remove, place)
    if num_stored:
        _log.info("%d numbers of %s were taken over into the database", num_stored, folder)
    return num_stored


def _places(folder: Path) -> list[Path]:
    found = [place for place in folder.glob("*/*") if _NUMBER.fullmatch(place.name) and place.is_dir()]
    return sorted(found, key=lambda place: (place.parent.name, int(place.name)))


def _read(place: Path) -> dict[str, Any]:
    """Return the documents of a folder by the stems of their files; files that are not JSON are left out.

    Raises: OSError if the machine refuses to read a file at the moment.
    """
    found = {}
    for path in place.glob("*.json"):
        try:
            found[path.stem] = json.loads(path.read_text(encoding="utf-8", errors="surrogatepass"))
        except (OSError, ValueError, RecursionError) as error:
            if is_passing(error):
                raise
            _log.warning("%s cannot be read, and is left out", path)
    return found


def _remove(place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
    _remove_empty(place)


def _set_aside(place: Path) -> None:
    folder = place.parent.parent
    target = folder.parent / "set-aside" / folder.name / place.parent.name / place.name
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        place.rename(target)
    except OSError as error:
        _log.warning("%s, of a job that the database does not know, stays where it is: %s", place, error)
        return
    _log.warning("%s, of a job that the database does not know, is at %s now", place, target)
    _remove_empty(place)


def _remove_empty(place: Path) -> None:
    """Remove the folders above a number if they are empty."""
    for folder in (place.parent, place.parent.parent):
        try:
            folder.rmdir()
        except OSError:
            return  # not empty
