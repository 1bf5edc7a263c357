"""Keeps series small in the background: joins blocks, rolls them up, removes blocks older than settings allow.

Where: the service that holds the lease of the database runs this as one background task.
"""

from __future__ import annotations

import asyncio
import logging

from clary.base.clock import Clock
from clary.base.errors import StoreError
from clary.control.reconcile.gateways.sample_gateway import SampleGateway
from clary.control.series.queries import FINE_MS, ROWS_MS
from clary.control.settings import Settings
from clary.control.store.series_blocks import SeriesBlocks
from clary.control.store.series_joining import join_open_blocks, remove_old_blocks

INTERVAL_S = 30.0
MS_PER_S = 1000

_log = logging.getLogger(__name__)


async def keep_series_once(blocks: SeriesBlocks, settings: Settings, clock: Clock) -> tuple[int, int]:
    """Do all due work now; return the number of joined blocks and the number of removed blocks.

    Args:
        blocks: blocks of the database.
        settings: contain the retention of rows and roll-ups; 0 keeps them for ever.
        clock: measures ages.
    Raises: StoreError.
    """
    now_ms = int(clock.now().timestamp() * MS_PER_S)
    num_joined = await join_open_blocks(blocks, now_ms=now_ms)
    kept_s = {ROWS_MS: settings.series_rows_kept_s, FINE_MS: settings.series_rollups_kept_s}
    before_ms = {step: now_ms - int(seconds * MS_PER_S) for step, seconds in kept_s.items() if seconds}
    num_removed = await remove_old_blocks(blocks, before_ms=before_ms)
    return num_joined, num_removed


async def keep_series(
    blocks: SeriesBlocks, samples: SampleGateway, settings: Settings, clock: Clock, *, interval_s: float = INTERVAL_S
) -> None:
    """Do the due work at intervals until cancelled; an error of the store is logged.

    Args:
        blocks: blocks of the database.
        samples: gateway whose stale values are dropped, too.
        settings: as for `keep_series_once`.
        clock: measures ages of blocks.
        interval_s: seconds before each round, also before the first.
    """
    while True:
        await asyncio.sleep(interval_s)
        samples.forget_stale()
        try:
            num_joined, num_removed = await keep_series_once(blocks, settings, clock)
        except StoreError as error:
            _log.warning("series stay as they are for now: %s", error.message)
            continue
        if num_removed:
            _log.info("joined %d blocks of series, removed %d that are too old", num_joined, num_removed)
