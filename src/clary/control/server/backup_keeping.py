"""Makes backups of the database while the service runs.

Where: `service` starts it as a task; `clary backup make` requests a backup at once. PostgreSQL gets no backups.
"""

from __future__ import annotations

import asyncio
import logging

from clary.base.clock import Clock
from clary.base.errors import ClaryError
from clary.control.store.backups import Backup, Backups
from clary.control.store.database_life import DatabaseLife
from clary.control.store.store import Store

REST_FACTOR = 50  # shortest pause after a backup, as a multiple of its duration
FIRST_AFTER_S = 5.0  # pause before the first backup, so that it does not slow down the service's start

log = logging.getLogger(__name__)


class BackupKeeper:
    """Makes a backup every `interval_s` seconds, or less often if backups take long; with 0, only on request."""

    def __init__(self, store: Store, life: DatabaseLife, clock: Clock, *, interval_s: float) -> None:
        self._backups = None if store.file is None else life.backups(store.file)
        self._clock = clock
        self._interval_s = interval_s
        self._lock = asyncio.Lock()
        self.failure = ""  # why the last backup failed; empty if it succeeded

    @property
    def backups(self) -> Backups | None:
        """The stored backups; None if the database is not a file."""
        return self._backups

    async def run(self) -> None:
        """Make backups until cancelled."""
        if self._backups is None or not self._interval_s:
            return
        pause_s = FIRST_AFTER_S
        while True:
            await asyncio.sleep(pause_s)
            began_s = self._clock.monotonic()
            try:
                await self.make()
            except ClaryError as error:
                log.warning("%s", error.message)
            except Exception:  # boundary: no error may end the backups of a service that runs for months
                log.exception("a backup of the database failed; the next one is made at its time")
            pause_s = max(self._interval_s, REST_FACTOR * (self._clock.monotonic() - began_s))

    async def make(self) -> Backup | None:
        """Make a backup now and return it; None if the database is not a file. Raises StoreError."""
        if self._backups is None:
            return None
        async with self._lock:
            try:
                made = await asyncio.to_thread(self._backups.make, self._clock.now())
            except Exception as error:
                self.failure = error.message if isinstance(error, ClaryError) else f"{type(error).__name__}: {error}"
                raise
        self.failure = ""
        return made
