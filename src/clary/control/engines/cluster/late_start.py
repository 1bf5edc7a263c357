"""A scheduler that may be unavailable at the service's start: jobs wait until it answers, and hosts continue.

Where: `server.host_source` wraps the scheduler of Slurm in it, because Slurm's daemon runs on another machine. The
kinds of nodes are stored on disk, for use until the scheduler answers:

    <state folder>/slurm/kinds.json   the kinds of nodes that the scheduler reported last
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from clary.base.clock import Clock
from clary.base.errors import ContractError, EngineError
from clary.base.plain import from_plain, to_plain
from clary.base.whole_files import replace_durably
from clary.control.engines.cluster.scheduler import (
    Allocation,
    AllocationOrder,
    Boot,
    ClusterScheduler,
    Ended,
    NodeKind,
)

BEGIN_AGAIN_S = 2.0  # interval of attempts to start the scheduler

_log = logging.getLogger(__name__)


class LateStart:
    """A `ClusterScheduler` that wraps another scheduler, which is started as soon as it answers.

    Until then, `ask`, `allocations`, `wanted`, `end_host`, `end` and `why_not_proved` raise EngineError.

    Args:
        scheduler: scheduler that may be unavailable.
        kinds_file: file for the kinds of nodes; its folder is made if it is missing.
        clock: clock for the time between attempts.
    """

    def __init__(self, scheduler: ClusterScheduler, kinds_file: Path, clock: Clock) -> None:
        self._scheduler = scheduler
        self._kinds_file = kinds_file
        self._clock = clock
        self._lock = asyncio.Lock()
        self._boot: Boot | None = None
        self._has_begun = False
        self._tried_s = float("-inf")
        self._kinds: list[NodeKind] = []
        self.why_late = ""  # why the scheduler has not started; empty once it has

    @property
    def name(self) -> str:
        """Name of the scheduler for users."""
        return self._scheduler.name

    @property
    def remarks(self) -> tuple[str, ...]:
        """The scheduler's remarks on settings."""
        return self._scheduler.remarks

    async def start(self, boot: Boot) -> None:
        """Start the scheduler, or retry later if it does not answer now but did in an earlier run.

        Raises: EngineError.
        """
        self._boot = boot
        self._kinds = await asyncio.to_thread(self._read_kinds)
        try:
            await self._begin()
        except EngineError as error:
            if not error.retryable or not self._kinds:
                raise
            _log.warning("%s; jobs wait until it does", error.message)

    async def close(self) -> None:
        """Stop following the scheduler."""
        await self._scheduler.close()

    async def capacity(self) -> list[NodeKind]:
        """Return the kinds of nodes, from disk while the scheduler has not started."""
        try:
            await self._begin()
        except EngineError:
            return self._kinds
        kinds = await self._scheduler.capacity()
        if kinds != self._kinds:
            self._kinds = kinds
            await asyncio.to_thread(self._write_kinds)
        return kinds

    async def ask(self, order: AllocationOrder) -> None:
        """Request hosts. Raises: EngineError."""
        await self._begin()
        await self._scheduler.ask(order)

    async def allocations(self) -> Mapping[str, Allocation]:
        """Return tag -> allocation. Raises: EngineError."""
        await self._begin()
        return await self._scheduler.allocations()

    async def wanted(self, tags: Sequence[str]) -> Mapping[str, str]:
        """Return tag -> the job that waits for its nodes. Raises: EngineError."""
        await self._begin()
        return await self._scheduler.wanted(tags)

    async def end_host(self, tag: str, index: int) -> Ended:
        """End one host. Raises: EngineError."""
        await self._begin()
        return await self._scheduler.end_host(tag, index)

    async def end(self, tag: str) -> Ended:
        """End an allocation. Raises: EngineError."""
        await self._begin()
        return await self._scheduler.end(tag)

    def why_not_proved(self, tag: str, index: int, proof: str) -> str:
        """Return why a proof is not accepted, empty if it is. Raises: EngineError until the scheduler has started.

        Args:
            tag: tag that the boot names.
            index: index that the boot names.
            proof: proof that the boot sent.
        """
        if not self._has_begun:
            raise EngineError(self.why_late or f"{self.name} has not started yet", retryable=True)
        return self._scheduler.why_not_proved(tag, index, proof)

    async def _begin(self) -> None:
        if self._has_begun:
            return
        async with self._lock:
            now_s = self._clock.monotonic()
            if self._has_begun:
                return
            if self.why_late and now_s - self._tried_s < BEGIN_AGAIN_S:
                raise EngineError(self.why_late, retryable=True)
            assert self._boot is not None, "start comes first"
            try:
                await self._scheduler.start(self._boot)
            except EngineError as error:
                self.why_late, self._tried_s = error.message, self._clock.monotonic()
                raise
            if self.why_late:
                _log.info("%s answers", self.name)
            self.why_late, self._has_begun = "", True

    def _read_kinds(self) -> list[NodeKind]:
        try:
            return [from_plain(NodeKind, one) for one in json.loads(self._kinds_file.read_text(encoding="utf-8"))]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, ContractError) as error:
            _log.warning("%s is not what was written there, and is not used: %s", self._kinds_file, error)
            return []

    def _write_kinds(self) -> None:
        try:
            self._kinds_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_durably(self._kinds_file, json.dumps([to_plain(kind) for kind in self._kinds]).encode())
        except OSError as error:
            _log.warning("%s cannot be written: %s", self._kinds_file, error.strerror)
