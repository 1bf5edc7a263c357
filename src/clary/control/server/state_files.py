"""Restores damaged or missing files by which clients find the service: its record and the keys.

Where: `service` runs it as a task. Without run/service.json, `clary down` could not stop the service; without
secrets/root.json, the next service could not reach its jobs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from clary.base.errors import ClaryError
from clary.control.state_folder import RootSecrets, ServiceRecord, StateFolder, read_record_file

LOOK_INTERVAL_S = 2.0

log = logging.getLogger(__name__)


async def keep_files(
    folder: StateFolder, record: ServiceRecord, secrets: RootSecrets, *, others: Sequence[Callable[[], None]] = ()
) -> None:
    """Check until cancelled, and rewrite missing or damaged files, and a record of another service.

    Args:
        folder: the state folder.
        record: record of this service.
        secrets: the service's keys.
        others: functions that rewrite files of other parts of the service; they raise OSError.
    """
    has_failed = False
    while True:
        await asyncio.sleep(LOOK_INTERVAL_S)
        try:
            mend_files(folder, record, secrets)
            for mend in others:
                mend()
            has_failed = False
        except OSError as error:
            if not has_failed:  # logged once, because a full disk may stay full for long
                log.warning("%s: files of the service cannot be written: %s", folder.root, error)
            has_failed = True


def mend_files(folder: StateFolder, record: ServiceRecord, secrets: RootSecrets) -> None:
    """Write the record unless both its files hold it, and the keys if their file is missing or damaged; raises OSError.

    Intact keys that differ from the service's stay: the owner may have put them there for the next start.

    Args:
        folder: the state folder.
        record: record of this service.
        secrets: the service's keys in memory.
    """
    if any(_read_record(path) != record for path in (folder.service_record_path, folder.service_record_copy_path)):
        log.warning("%s was deleted or changed; it is written anew", folder.service_record_path)
        folder.service_record_path.parent.mkdir(parents=True, exist_ok=True)
        folder.write_service_record(record)
    try:
        folder.read_secrets()
    except ClaryError as error:
        log.warning("%s; they are written anew from the service's memory", error.message)
        folder.secrets_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.write_secrets(secrets)


def mend_engine(folder: StateFolder, engine: str) -> None:
    """Write the name of the service's engine unless its file holds it; raises OSError.

    The next service trusts the file: with another engine it would not find the hosts that jobs hold.
    """
    try:
        is_kept = folder.read_engine() == engine
    except ClaryError:
        is_kept = False
    if not is_kept:
        log.warning("%s was deleted or changed; it is written anew", folder.engine_path)
        folder.engine_path.parent.mkdir(parents=True, exist_ok=True)
        folder.write_engine(engine)


def _read_record(path: Path) -> ServiceRecord | None:
    try:
        return read_record_file(path)
    except ClaryError:
        return None
