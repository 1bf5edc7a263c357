"""Lines pass through spool, shipper and a real log store, with every failure possible between shipper and store."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from clary.agent.log import log_batches, log_shipper
from clary.agent.log.log_intake import LogIntake
from clary.agent.log.log_shipper import LogShipper
from clary.agent.log.log_spool import LogSpool
from clary.agent.log.metrics import MetricFinder
from clary.agent.service_client import ServiceUnreachable
from clary.base.clock import SystemClock
from clary.base.errors import Fault
from clary.base.plain import from_plain, to_plain
from clary.contract.agent_protocol import LogBatch, LogReceipt
from clary.control.store.log_files.logs import LogStore

STREAM = "job-1/algo-1-1"
NUM_LINES = 400
PATIENCE_S = 60.0


class UnreliableStore:
    """A log store behind a network that loses requests and receipts, doubles requests, and dies now and then."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self._folder = folder
        self._chance = chance
        self._loop = asyncio.new_event_loop()
        self._logs = LogStore(folder)
        self._loop.run_until_complete(self._logs.create_stream(STREAM, datetime(2026, 1, 1, tzinfo=UTC)))
        self._earlier: list[LogBatch] = []
        self.mishaps: set[str] = set()

    def encode_logs(self, batch: LogBatch) -> bytes:
        return json.dumps(to_plain(batch)).encode()

    def send_logs(self, body: bytes) -> LogReceipt:
        batch = from_plain(LogBatch, json.loads(body))
        mishap = self._chance.choice(["none", "none", "request lost", "receipt lost", "doubled", "late", "restart"])
        self.mishaps.add(mishap)
        if mishap == "request lost":
            raise ServiceUnreachable("no route", fault=Fault.INFRASTRUCTURE)
        if mishap == "restart":
            self.close_store()
            self._logs = LogStore(self._folder)
        # an earlier request that was delayed in a queue arrives after later ones
        if mishap == "late" and self._earlier:
            self._append(self._chance.choice(self._earlier))
        next_sequence = self._append(batch)
        self._earlier.append(batch)
        if mishap == "doubled":
            next_sequence = self._append(batch)
        if mishap == "receipt lost":
            raise ServiceUnreachable("reset by peer", fault=Fault.INFRASTRUCTURE)
        return LogReceipt(next_sequence=next_sequence)

    def stored(self) -> list[str]:
        page = self._loop.run_until_complete(self._logs.get_events(STREAM, from_head=True))
        return [event.message for event in page.events]

    def close_store(self) -> None:
        self._loop.run_until_complete(self._logs.close())

    def close(self) -> None:
        self.close_store()
        self._loop.close()

    def _append(self, batch: LogBatch) -> int:
        return self._loop.run_until_complete(self._logs.append(STREAM, batch.first_sequence, batch.blocks))


class FakeBackOff:
    """Waits for almost no time."""

    def next_s(self) -> float:
        return 0.0

    def reset(self) -> None:
        pass


@pytest.mark.parametrize("seed", range(8))
def test_each_line_arrives_once_and_in_order_whatever_is_lost_doubled_or_late(tmp_path, monkeypatch, seed) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(log_batches, "BATCH_LINES", 7)
    monkeypatch.setattr(log_batches, "FLOOD_BYTES", 1)
    monkeypatch.setattr(log_shipper, "GATHER_S", 0.0)
    monkeypatch.setattr(log_shipper, "BackOff", FakeBackOff)
    store = UnreliableStore(tmp_path / "logs", chance)
    spool = LogSpool(tmp_path / "spool", segment_bytes=500)
    intake = LogIntake(spool, clock=SystemClock())
    problems: list[str] = []
    shipper = LogShipper(
        store,
        spool=spool,
        intake=intake,
        metrics=MetricFinder((), on_note=problems.append),
        on_over=problems.append,
        on_problem=problems.append,
    )
    shipper.start()
    try:
        texts = [f"line {number}" for number in range(NUM_LINES)]
        writer = threading.Thread(target=lambda: [intake.on_output("p", f"{text}\n".encode()) for text in texts])
        writer.start()
        writer.join()
        is_drained = shipper.drain(PATIENCE_S)
        assert shipper.close(PATIENCE_S)
        assert (is_drained, problems) == (True, [])
        assert store.stored() == texts
        assert len(store.mishaps) > 3
    finally:
        shipper.close(PATIENCE_S)
        spool.close()
        store.close()
