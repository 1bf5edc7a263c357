"""Keeps the times of boxes' last reports, and wakes requests that wait for changes. Keeps its state in memory only.

Where: `lease_book` holds one `Presence`. Silence is counted from the start of this service at the earliest, so that a
box that has not yet reported to this service does not count as lost at once. Time in which this service was blocked
does not count.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field

from clary.contract.box_protocol import BoxReport
from clary.control.attentive_clock import AttentiveClock

SILENCE_S = 15.0  # longest time without a request of the box's daemon, which sends one at least every POLL_WAIT_S


@dataclass
class _Heard:
    """Newest report of a box."""

    at_s: float
    run: str = ""
    number: int = -1
    last_run: str = ""  # run of the daemon before
    is_doubtful: bool = False  # whether that daemon has sent a report since
    remote: str = ""
    version: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    was_ever: bool = False


class Presence:
    """Times and versions of the boxes' reports.

    Args:
        clock: measures the boxes' silence; it must listen while boxes have leases.
    """

    def __init__(self, clock: AttentiveClock) -> None:
        self._clock = clock
        self._started_s = clock.monotonic()
        self._boxes: defaultdict[str, _Heard] = defaultdict(lambda: _Heard(self._started_s))
        self._any_change = asyncio.Event()

    def begin(self) -> None:
        """Count the silence of all boxes from now."""
        self._started_s = self._clock.monotonic()

    def forget(self, box: str) -> None:
        """Delete a box's state, and wake all requests that wait for it."""
        self.change(box)
        self._boxes.pop(box, None)

    def introduce(self, box: str) -> None:
        """Count the silence of a new box from now."""
        self._boxes[box].at_s = self._clock.monotonic()
        self.expect(box)

    def expect(self, box: str) -> None:
        """Count a box as not heard until its next report, as its daemon is replaced; its silence goes on."""
        self._boxes[box].was_ever = False

    def hear(self, box: str, report: BoxReport, remote: str) -> bool:
        """Record a report; return False for an older report that arrived late.

        A report of the daemon before, which was replaced, counts as late. A second one in a row proves that this daemon
        runs, and that the late report was the other one: this service was restarted in between.

        Args:
            box: name of the box.
            report: report of the box's daemon.
            remote: address from which the report was sent.
        """
        heard = self._boxes[box]
        if heard.run == report.run and report.number <= heard.number:
            return False
        if report.run == heard.last_run and report.run != heard.run and not heard.is_doubtful:
            heard.is_doubtful = True
            return False
        if report.run != heard.run:
            heard.last_run = heard.run
        heard.is_doubtful = False
        heard.at_s, heard.was_ever = self._clock.monotonic(), True
        heard.run, heard.number, heard.remote = report.run, report.number, remote
        self._clock.wake()
        return True

    def is_silent(self, box: str) -> bool:
        """Whether a box has not reported for too long."""
        return self.silent_s(box) > SILENCE_S

    def silent_s(self, box: str) -> float:
        """Return the seconds since a box's last report, or since the start of this service if that is later."""
        heard = self._boxes.get(box)
        return self._clock.monotonic() - (self._started_s if heard is None else max(heard.at_s, self._started_s))

    def was_heard(self, box: str) -> bool:
        """Whether this service has received a report of a box since its daemon was started or replaced."""
        return box in self._boxes and self._boxes[box].was_ever

    def remote(self, box: str) -> str:
        """Return the address from which a box last reported."""
        return self._boxes[box].remote if box in self._boxes else ""

    def version(self, box: str) -> int:
        """Return the version of a box's orders: the number of changes since this service started."""
        return self._boxes[box].version

    def change(self, box: str) -> None:
        """Wake a box's request that waits for orders, and all requests that wait for any box."""
        heard = self._boxes[box]
        heard.version += 1
        heard.changed.set()
        heard.changed = asyncio.Event()
        self._any_change.set()
        self._any_change = asyncio.Event()

    async def wait_for(self, box: str, version: int, wait_s: float) -> None:
        """Wait until the orders of a box differ from those of `version`; at most `wait_s` seconds.

        Args:
            box: name of the box.
            version: version of the orders that the daemon has.
            wait_s: limit.
        """
        heard = self._boxes[box]
        if heard.version != version:
            return
        try:
            async with asyncio.timeout(wait_s):
                await heard.changed.wait()
        except TimeoutError:
            pass

    async def wait_for_any(self, wait_s: float) -> None:
        """Wait for a change of any box's leases or orders; at most `wait_s` seconds."""
        try:
            async with asyncio.timeout(wait_s):
                await self._any_change.wait()
        except TimeoutError:
            pass
