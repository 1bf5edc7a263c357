"""Removes expired log streams at intervals.

Where: the server runs one task of this. A stream of an unfinished job is kept at any age, because it may still receive
lines.
"""

from __future__ import annotations

import asyncio
import logging

from clary.base.errors import StoreError
from clary.control.reconcile.hub import JobHub
from clary.control.store.log_files.logs import LogStore

INTERVAL_S = 3600.0  # retention is counted in days

_log = logging.getLogger(__name__)


async def remove_expired_streams(logs: LogStore, hub: JobHub) -> int:
    """Remove the streams that have expired; return their number."""
    num_removed = await logs.remove_expired(lambda stream: hub.live_job(stream.partition("/")[0]) is not None)
    if num_removed:
        _log.info("removed %d log streams that have expired", num_removed)
    return num_removed


async def keep_removing(logs: LogStore, hub: JobHub) -> None:
    """Remove expired streams at intervals until cancelled; an error of the store or its files is logged."""
    while True:
        try:
            await remove_expired_streams(logs, hub)
        except (StoreError, OSError) as error:
            _log.warning("log streams that have expired stay for now: %s", error)
        await asyncio.sleep(INTERVAL_S)
