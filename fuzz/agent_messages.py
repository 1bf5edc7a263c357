"""Messages that a hostile agent can send: reports and log batches with any content.

Where: `agent_target` sends them. A program that gets at its host's token can send the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from clary.base.errors import Fault
from clary.contract.agent_protocol import HostPhase
from fuzz.byte_reader import ByteReader

_NUMBERS = (0, 1, 2, 3, -1, 2**31, 2**63, 10**30, 10**400, 1.5, 1e308, float("nan"), float("inf"), -0.0, True)
_TIMES = (
    "2026-01-01T00:00:00+00:00",
    "2026-01-01T00:00:01+00:00",
    "2026-01-01T00:00:00",
    "2026-01-01",
    "0001-01-01T00:00:00+23:59",
    "9999-12-31T23:59:59-23:59",
    "2026-01-01T00:00:00+00:00:01.5",
    "1969-12-31T00:00:00+00:00",
    "",
)
_TEXTS = (
    "ValueError: no such column",
    "",
    "\ud800",
    "\0",
    "x" * 2000,
    "two\nlines",
    "\n",
    "\r",
    "<&>",
    "é中\U0001f600",
    "rank 0: torch.distributed.elastic ChildFailedError",
    "out of memory: ",
    "algo-1",
    "algo-2",
    "model",
    "s3://bucket/out/victim/output/model.tar.gz",
    "s3://bucket/out/job/output/model.tar.gz",
    "loss",
)
_PHASES = tuple(phase.value for phase in HostPhase)
_FAULTS = tuple(fault.value for fault in Fault)
_KINDS = ("report", "logs", "anything")
_DEPTHS = (3, 50, 300, 900, 5000)


class MessageMaker:
    """Makes messages; one part in a few has another type than the protocol says, or is missing."""

    def __init__(self, reader: ByteReader) -> None:
        self._reader = reader

    def body(self, action: str) -> bytes:
        """Return the body of a request, JSON or nearly."""
        document = self.report() if action == "reports" else self.logs()
        if self._reader.chance(16):
            document = self._anything()
        try:
            body = json.dumps(document).encode("ascii")
        except (RecursionError, ValueError):
            body = b"[" * 5000
        if self._reader.chance(8):
            at = self._reader.below(len(body) + 1)
            body = body[:at] + self._reader.chunk() + body[at + self._reader.byte() :]
        return body

    def report(self) -> Any:
        """Return a Report in plain form."""
        facts = {
            "phase": self._maybe(lambda: self._reader.choose(_PHASES)),
            "phase_started_at": self._time(),
            "agent_pid": self._optional(self._number),
            "init_pid": self._optional(self._number),
            "timings_s": self._mapping(self._number),
            "not_isolated": self._several(self._text),
            "exits": self._several(self._exit),
            "failure": self._optional(self._failure),
            "clues": self._several(self._clue),
            "failure_file": self._optional(self._text),
            "staged": self._several(self._part),
            "uploaded": self._several(self._text),
            "notes": self._several(self._text),
        }
        report = {"number": self._maybe(lambda: 1 + self._reader.byte()), "facts": self._maybe(lambda: facts)}
        return self._without_some({**report, "last_order": self._number()}, facts)

    def logs(self) -> Any:
        """Return a LogBatch in plain form."""
        blocks = self._several(self._block)
        return {"first_sequence": self._maybe(lambda: self._reader.choose((0, 0, 0, 1, -1, 2**70))), "blocks": blocks}

    def _exit(self) -> Any:
        return {
            "rank": self._optional(self._number),
            "local_rank": self._number(),
            "pid": self._number(),
            "exit_code": self._optional(self._number),
            "signal": self._optional(self._number),
            "ended_at": self._time(),
            "is_consequence": self._maybe(self._reader.chance),
        }

    def _failure(self) -> Any:
        return {
            "fault": self._maybe(lambda: self._reader.choose(_FAULTS)),
            "message": self._text(),
            "exit_code": self._optional(self._number),
            "retryable": self._maybe(self._reader.chance),
            "at": self._optional(self._time),
        }

    def _clue(self) -> Any:
        return {"rank": self._optional(self._number), "at": self._time(), "text": self._text()}

    def _part(self) -> Any:
        return {
            "host": self._text(),
            "kind": self._text(),
            "uri": self._text(),
            "size_bytes": self._number(),
            "num_files": self._number(),
        }

    def _block(self) -> Any:
        metric = lambda: {"name": self._text(), "value": self._number(), "at": self._time()}  # noqa: E731
        return {
            "at_ms": self._number(),
            "text": self._text(),
            "rank": self._optional(self._number),
            "metrics": self._several(metric),
        }

    def _number(self) -> Any:
        return self._maybe(lambda: self._reader.choose(_NUMBERS) if self._reader.chance(4) else self._reader.below(3))

    def _text(self) -> Any:
        return self._maybe(lambda: self._reader.text() if self._reader.chance(8) else self._reader.choose(_TEXTS))

    def _time(self) -> Any:
        return self._maybe(lambda: _TIMES[self._reader.below(2 * len(_TIMES)) % len(_TIMES)])

    def _optional(self, make: Callable[[], Any]) -> Any:
        return make() if self._reader.chance() else None

    def _several(self, make: Callable[[], Any]) -> Any:
        return self._maybe(lambda: [make() for _ in range(max(0, self._reader.byte() % 8 - 4))])

    def _mapping(self, make: Callable[[], Any]) -> Any:
        return self._maybe(lambda: {str(self._text()): make() for _ in range(max(0, self._reader.byte() % 8 - 5))})

    def _maybe(self, make: Callable[[], Any]) -> Any:
        """Return the result of `make`; once in a while any other value."""
        return self._anything() if self._reader.chance(40) else make()

    def _anything(self) -> Any:
        kind = self._reader.below(5)
        if kind == 0:
            return self._reader.choose(_NUMBERS)
        if kind == 1:
            return self._reader.choose(_TEXTS)
        if kind == 2:
            value: Any = []
            for _ in range(self._reader.choose(_DEPTHS)):
                value = [value]
            return value
        return self._reader.choose((None, {}, [], {"": []}, [None], "2026"))

    def _without_some(self, report: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
        for document in (report, facts):
            if self._reader.chance(16):
                document.pop(self._reader.choose(tuple(document)))
        return report
