"""Series: points stored a second, bytes a point, and the time of questions about a week of 64 ranks.

`store` sends batches of ten rows from all hosts at once, as agents do, and waits for each to be durable; `join` is what
the service does with them in the background. `take` is `store` from the bytes of agents' JSON on: parsed, checked,
and the last values kept. `week` asks for all ranks' processors over the whole time, `minutes` for
all series of one host over a quarter of an hour. The week of --quick has an hour. CLARY_BENCH_HOURS stands in place
of 168.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import sys
import tempfile
import time
import zlib
from array import array
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.lines import Line, median_and_spread
from benchmarks.sight.metric_peer import RowTable
from clary.base.clock import SystemClock
from clary.base.plain import from_plain, to_plain
from clary.contract.metric_samples import SampleBatch
from clary.contract.statuses import SecondaryStatus, TrainingJobStatus
from clary.control.jobs.training_job import TrainingJob
from clary.control.reconcile.gateways.sample_gateway import SampleGateway
from clary.control.series.queries import SeriesQuery
from clary.control.series.tables import SeriesTable
from clary.control.store.series_joining import join_open_blocks
from clary.control.store.store import Store
from clary.control.store.tables import series_blocks

NUM_HOSTS, RANKS_PER_HOST = 8, 8
STEP_MS, BATCH_ROWS, FEED_ROWS = 500, 10, 600
HOUR_MS, QUARTER_MS = 3_600_000, 900_000
START_MS = 1_767_225_600_000
LATER_MS = 400 * HOUR_MS
PEER_MAX_HOURS = 6.0  # the peer's table has 20 bytes a value: a week would fill the disk
WEEK_POINTS = 60
GOAL_POINTS_PER_S = 250_000.0
GOAL_WEEK_S = 1.0
GOAL_BYTES = 2.0
SERIES_OF_RANK = ("cpu_percent", "memory_bytes", "read_bytes_s", "write_bytes_s", "num_threads", "num_processes")
Batch = tuple[str, int, SeriesTable]  # host, first row


def run(quick: bool) -> Iterator[Line]:
    """Measure storing, then questions."""
    hours = 1.0 if quick else float(os.environ.get("CLARY_BENCH_HOURS", "168"))
    with tempfile.TemporaryDirectory(prefix="clary-metrics-") as folder:
        yield from _measure_storing(Path(folder), num_rounds=30 if quick else 300)
    with tempfile.TemporaryDirectory(prefix="clary-metrics-") as folder:
        yield from _measure_questions(Path(folder), hours=hours)


def host_rows(host: int, first_row: int, num_rows: int) -> SeriesTable:
    """Return made-up rows of a host with ranks, rounded as agents do; the same arguments give the same rows."""
    chance = random.Random(host * 1_000_003 + first_row)
    rows = range(first_row, first_row + num_rows)
    columns: dict[str, list[float]] = {
        "host/cpu_percent": [round(chance.gauss(750, 20), 1) for _ in rows],
        "host/cpu_throttled_percent": [0.0 for _ in rows],
        "host/memory_bytes": [4096.0 * (6_000_000 + row // 7) for row in rows],
        "host/memory_limit_bytes": [64.0 * 2**30 for _ in rows],
        "host/memory_percent": [round(35 + row % 1000 / 1000, 2) for row in rows],
        "host/disk_used_percent": [round(41 + row * 1e-5, 2) for row in rows],
        "host/disk_read_bytes_s": [0.0 if chance.random() < 0.9 else 4096.0 * chance.randrange(4000) for _ in rows],
        "host/disk_write_bytes_s": [0.0 if chance.random() < 0.9 else 4096.0 * chance.randrange(4000) for _ in rows],
        "host/network_received_bytes_s": [round(chance.gauss(41e6, 3e6), 1) for _ in rows],
        "host/network_sent_bytes_s": [round(chance.gauss(40e6, 3e6), 1) for _ in rows],
    }
    for rank in range(host * RANKS_PER_HOST, (host + 1) * RANKS_PER_HOST):
        values = {
            "cpu_percent": [round(chance.gauss(94, 3), 1) for _ in rows],
            "memory_bytes": [4096.0 * (700_000 + row // 11) for row in rows],
            "read_bytes_s": [0.0 if chance.random() < 0.9 else 65536.0 * chance.randrange(100) for _ in rows],
            "write_bytes_s": [0.0 for _ in rows],
            "num_threads": [24.0 for _ in rows],
            "num_processes": [5.0 for _ in rows],
        }
        columns |= {f"rank-{rank}/{name}": values[name] for name in SERIES_OF_RANK}
    return SeriesTable(
        at_ms=array("q", (START_MS + STEP_MS * row for row in rows)),
        columns={name: (array("f", column),) for name, column in columns.items()},
    )


def _measure_storing(folder: Path, *, num_rounds: int) -> Iterator[Line]:
    print(f"store: {num_rounds} batches of each of {NUM_HOSTS} hosts", file=sys.stderr)
    rounds = [
        [(f"algo-{host + 1}", row, host_rows(host, row, BATCH_ROWS)) for host in range(NUM_HOSTS)]
        for row in range(0, num_rounds * BATCH_ROWS, BATCH_ROWS)
    ]
    num_points = sum(len(table.columns) * table.num_rows for one in rounds for _, _, table in one)
    ours = asyncio.run(_store(folder, rounds))
    taken = asyncio.run(_take(folder, _bodies(rounds)))
    peer = RowTable(folder / "peer.db")
    began_s = time.perf_counter()
    for one in rounds:
        peer.append((host, table) for host, _, table in one)
    peer_s = time.perf_counter() - began_s
    peer_bytes = peer.size_bytes()
    peer.close()
    case = f"sqlite,hosts={NUM_HOSTS},series={len(rounds[0][0][2].columns)},rows={BATCH_ROWS}"
    verified = ours["num_found"] == num_points
    yield Line(
        case=f"store,{case}",
        metric="points_per_s",
        unit="1/s",
        better="higher",
        ours=num_points / ours["store_s"],
        peers={"sqlite-rows": num_points / peer_s},
        peer_note="one transaction a round of all hosts; key (series, at)",
        bound=num_points / _deflate_s(rounds),
        bound_note="zlib level 6 over the same floats, batch by batch",
        goal=f">= {GOAL_POINTS_PER_S:g}",
        met=num_points / ours["store_s"] >= GOAL_POINTS_PER_S,
        verified=verified,
        details={
            "num_points": num_points,
            "points_per_cpu_s": num_points / ours["store_cpu_s"],
            "load_average": os.getloadavg()[0],
        },
    )
    yield Line(
        case=f"take,{case}",
        metric="points_per_s",
        unit="1/s",
        better="higher",
        ours=num_points / taken["take_s"],
        goal=f">= {GOAL_POINTS_PER_S:g}",
        met=num_points / taken["take_s"] >= GOAL_POINTS_PER_S,
        verified=taken["num_rows"] == len(rounds) * NUM_HOSTS * BATCH_ROWS,
        details={"points_per_cpu_s": num_points / taken["take_cpu_s"], "load_average": os.getloadavg()[0]},
    )
    yield Line(
        case=f"join,{case}",
        metric="points_per_s",
        unit="1/s",
        better="higher",
        ours=num_points / ours["join_s"],
        verified=verified,
        details={"points_per_cpu_s": num_points / ours["join_cpu_s"], "load_average": os.getloadavg()[0]},
    )
    yield Line(
        case=f"joined,{case}",
        metric="bytes_per_point",
        unit="B",
        better="lower",
        ours=ours["num_bytes"] / num_points,
        peers={"sqlite-rows": peer_bytes / num_points},
        peer_note="the file; ours is the blocks of rows and of all roll-ups",
        goal=f"<= {GOAL_BYTES:g}",
        met=ours["num_bytes"] / num_points <= GOAL_BYTES,
        verified=verified,
    )


async def _store(folder: Path, rounds: Sequence[Sequence[Batch]]) -> dict[str, float]:
    store = await _open(folder)
    try:
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        for one in rounds:
            await asyncio.gather(*(_append(store, batch) for batch in one))
        stored_s, stored_cpu_s = time.perf_counter(), time.process_time()
        while await join_open_blocks(store.series, now_ms=START_MS + LATER_MS):
            pass
        joined_s, joined_cpu_s = time.perf_counter(), time.process_time()
        num_bytes = await store.series.read(_num_bytes)
        end_ms = START_MS + len(rounds) * BATCH_ROWS * STEP_MS
        query = SeriesQuery(job_name="bench", start_ms=START_MS, end_ms=end_ms, step_ms=10_000)
        answer = await store.series.query(query)
        num_found = sum(point.count for one in answer.series for point in one.points)
        return {
            "store_s": stored_s - began_s,
            "join_s": joined_s - stored_s,
            "store_cpu_s": stored_cpu_s - began_cpu_s,
            "join_cpu_s": joined_cpu_s - stored_cpu_s,
            "num_bytes": num_bytes,
            "num_found": num_found,
        }
    finally:
        await store.close()


def _bodies(rounds: Sequence[Sequence[Batch]]) -> list[list[tuple[str, bytes]]]:
    """Return batches as agents send them, of now."""
    num_rows = len(rounds) * BATCH_ROWS
    later_ms = int(time.time() * 1000) - num_rows * STEP_MS - START_MS
    return [[(host, _body(table, row, later_ms)) for host, row, table in one] for one in rounds]


def _body(table: SeriesTable, first_row: int, later_ms: int) -> bytes:
    batch = SampleBatch(
        first_row=first_row,
        at_ms=tuple(at_ms + later_ms for at_ms in table.at_ms),
        names=tuple(table.columns),
        columns=tuple(tuple(round(value, 2) for value in values) for (values,) in table.columns.values()),
    )
    return json.dumps(to_plain(batch)).encode()


async def _take(folder: Path, rounds: Sequence[Sequence[tuple[str, bytes]]]) -> dict[str, float]:
    (folder / "taken").mkdir()
    store = await _open(folder / "taken")
    gateway = SampleGateway(store.series, SystemClock())

    async def take(host: str, body: bytes) -> None:
        await gateway.append(_job(), host, from_plain(SampleBatch, json.loads(body)))

    try:
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        for one in rounds:
            await asyncio.gather(*(take(host, body) for host, body in one))
        took_s, took_cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
        return {"take_s": took_s, "take_cpu_s": took_cpu_s, "num_rows": gateway.num_rows}
    finally:
        await store.close()


def _measure_questions(folder: Path, *, hours: float) -> Iterator[Line]:
    num_rows = int(hours * HOUR_MS / STEP_MS)
    end_ms = START_MS + num_rows * STEP_MS
    peer = RowTable(folder / "peer.db") if hours <= PEER_MAX_HOURS else None
    step_ms = max(10_000, math.ceil((end_ms - START_MS) / WEEK_POINTS / 10_000) * 10_000)
    asked = {
        "week": SeriesQuery(
            job_name="bench", names="rank-*/cpu_percent", start_ms=START_MS, end_ms=end_ms, step_ms=step_ms
        ),
        "minutes": SeriesQuery(
            job_name="bench", host="algo-1", start_ms=end_ms - QUARTER_MS, end_ms=end_ms, step_ms=20_000
        ),
    }
    found = asyncio.run(_ask(folder, num_rows, asked, peer))
    for name, query in asked.items():
        samples, answer_points, is_right = found[name]
        middle, spread = median_and_spread(samples)
        peers = {}
        if peer is not None:
            peers = {"sqlite-rows": _peer_seconds(peer, query)}
        yield Line(
            case=f"query,{name},hosts={NUM_HOSTS},ranks={NUM_HOSTS * RANKS_PER_HOST},hours={hours:g}",
            metric="seconds",
            unit="s",
            better="lower",
            ours=middle,
            peers=peers,
            peer_note="GROUP BY over the rows" if peers else f"not filled beyond {PEER_MAX_HOURS:g} hours",
            goal=f"<= {GOAL_WEEK_S:g}",
            met=middle <= GOAL_WEEK_S,
            samples=len(samples),
            spread=spread,
            verified=is_right,
            details={"num_points": answer_points, "step_ms": query.step_ms, "load_average": os.getloadavg()[0]},
        )
    if peer is not None:
        peer.close()


async def _ask(
    folder: Path, num_rows: int, asked: dict[str, SeriesQuery], peer: RowTable | None
) -> dict[str, tuple[list[float], int, bool]]:
    store = await _open(folder)
    first_rank: list[float] = []  # what the first rank's processor did, to check the answers by
    try:
        for row in range(0, num_rows, FEED_ROWS):
            if row % (FEED_ROWS * 12) == 0:
                print(f"feeding hour {row * STEP_MS // HOUR_MS}", file=sys.stderr)
            rows = min(FEED_ROWS, num_rows - row)
            batches = [(f"algo-{host + 1}", row, host_rows(host, row, rows)) for host in range(NUM_HOSTS)]
            first_rank += batches[0][2].columns["rank-0/cpu_percent"][0]
            await asyncio.gather(*(_append(store, batch) for batch in batches))
            if peer is not None:
                peer.append((host, table) for host, _, table in batches)
        while await join_open_blocks(store.series, now_ms=START_MS + LATER_MS):
            pass
        found = {}
        for name, query in asked.items():
            samples = []
            for _ in range(3):
                began_s = time.perf_counter()
                answer = await store.series.query(query)
                samples.append(time.perf_counter() - began_s)
            rank = next(one for one in answer.series if one.name == "rank-0/cpu_percent")
            first = (query.start_ms - START_MS) // STEP_MS
            mean = sum(point.mean * point.count for point in rank.points) / sum(point.count for point in rank.points)
            values = first_rank[first:]
            is_right = math.isclose(mean, math.fsum(values) / len(values), rel_tol=1e-4)
            found[name] = (samples, sum(len(one.points) for one in answer.series), is_right)
        return found
    finally:
        await store.close()


def _peer_seconds(peer: RowTable, query: SeriesQuery) -> float:
    hosts = range(NUM_HOSTS) if query.host is None else range(1)
    series = [
        (f"algo-{host + 1}", name) for host in hosts for name in host_rows(host, 0, 1).columns if query.wants(name)
    ]
    began_s = time.perf_counter()
    peer.query(series, start_ms=query.start_ms, end_ms=query.end_ms, step_ms=query.step_ms)
    return time.perf_counter() - began_s


def _deflate_s(rounds: Sequence[Sequence[Batch]]) -> float:
    raw = [b"".join(part.tobytes() for (part,) in table.columns.values()) for one in rounds for _, _, table in one]
    began_s = time.perf_counter()
    for piece in raw:
        zlib.compress(piece, 6)
    return time.perf_counter() - began_s


async def _open(folder: Path) -> Store:
    store = await Store.open(f"sqlite:///{folder / 'clary.db'}")
    await store.create_job(_job(), {})
    return store


def _job() -> TrainingJob:
    now = datetime.now(UTC)
    return TrainingJob(
        name="bench",
        arn="arn:bench",
        request={},
        status=TrainingJobStatus.IN_PROGRESS,
        secondary_status=SecondaryStatus.TRAINING,
        transitions=(),
        created_at=now,
        modified_at=now,
        attempt=1,
    )


async def _append(store: Store, batch: Batch) -> None:
    host, first_row, table = batch
    await store.series.append("bench", 1, host, table, first_row=first_row)


def _num_bytes(connection: Any) -> int:
    return sum(len(row.data) for row in connection.execute(series_blocks.select()))
