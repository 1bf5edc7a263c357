"""Keeps the files by which others find the service: its record and the keys, written anew where they were damaged.

Where: `service` runs it as a task. Whoever deletes run/service.json would else have a service that nobody can stop, and
whoever deletes secrets/root.json one whose jobs nobody could open after the next start.
"""

from __future__ import annotations

import asyncio
import logging

from clary.contract.errors import ClaryError
from clary.control.state_folder import RootSecrets, ServiceRecord, StateFolder

LOOK_INTERVAL_S = 2.0

log = logging.getLogger(__name__)


async def keep_files(folder: StateFolder, record: ServiceRecord, secrets: RootSecrets) -> None:
    """Look until cancelled, and write what is missing or not ours."""
    has_failed = False
    while True:
        await asyncio.sleep(LOOK_INTERVAL_S)
        try:
            mend_files(folder, record, secrets)
            has_failed = False
        except OSError as error:
            if not has_failed:  # a full disk is full for long; said once
                log.warning("%s: files of the service cannot be written: %s", folder.root, error)
            has_failed = True


def mend_files(folder: StateFolder, record: ServiceRecord, secrets: RootSecrets) -> None:
    """Write the record and the keys if their files are missing or say something else; raises OSError."""
    if _read_record(folder) != record:
        log.warning("%s was deleted or changed; it is written anew", folder.service_record_path)
        folder.service_record_path.parent.mkdir(parents=True, exist_ok=True)
        folder.write_service_record(record)
    if not folder.secrets_path.exists():
        log.warning("%s was deleted; it is written anew from what the service has in memory", folder.secrets_path)
        folder.secrets_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.write_secrets(secrets)


def _read_record(folder: StateFolder) -> ServiceRecord | None:
    try:
        return folder.read_service_record()
    except ClaryError:
        return None
