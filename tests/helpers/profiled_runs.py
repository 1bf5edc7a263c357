"""Measurements of runs as a job's hosts would take them: good runs, and runs with one defect each."""

import random

from clary.control.profiling.measurements import HostShape, measurements_of
from clary.control.series.queries import Point, Series

STEP_MS = 500
RUNNING = 3.0
PREPARING = 1.0
UPLOADING = 5.0
MIB = 1024 * 1024


def point(at_ms, value, count=1.0):
    return Point(at_ms, value, value, value, count, value)


def series(host, name, values, *, begin_ms=0, step_ms=STEP_MS, count=1.0):
    points = tuple(
        point(begin_ms + row * step_ms, float(value), count) for row, value in enumerate(values) if value is not None
    )
    return Series(host=host, name=name, points=points)


def run(columns, *, rows, num_cpus=8.0, num_gpus=2, hosts=("algo-1",), is_over=True, count=1.0):
    """Return measurements; columns are name -> function of host and row, or a list of values."""
    found = []
    for host in hosts:
        for name, values in {"host/phase": [RUNNING] * rows, **columns}.items():
            own = [values(host, row) for row in range(rows)] if callable(values) else values
            found.append(series(host, name, own, count=count))
    shapes = [HostShape(name=host, num_cpus=num_cpus, num_gpus=num_gpus) for host in hosts]
    return measurements_of(found, shapes, step_ms=STEP_MS, until_ms=rows * STEP_MS, is_over=is_over)


def noisy(value, spread, seed=1):
    """Return a column of random values around a value, limited to 0 to 100."""
    source = random.Random(seed)
    drawn = {}

    def column(host, row):
        if (host, row) not in drawn:
            drawn[host, row] = min(100.0, max(0.0, source.gauss(value, spread)))
        return drawn[host, row]

    return column


def steady_gpus(rows=3000, **changes):
    """Return a good run: two hosts of two GPUs that always have work, steps of a quarter of a second."""
    source = random.Random(7)
    columns = {
        "host/cpu_percent": lambda host, row: source.uniform(200, 420),
        "machine/cpu_iowait_percent": lambda host, row: source.uniform(0, 20),
        "host/memory_percent": noisy(45, 1),
        "host/disk_read_bytes_s": lambda host, row: source.uniform(0, 50 * MIB),
        "host/disk_write_bytes_s": lambda host, row: 0.0,
        "host/network_received_bytes_s": lambda host, row: source.uniform(80 * MIB, 120 * MIB),
        "host/network_sent_bytes_s": lambda host, row: source.uniform(80 * MIB, 120 * MIB),
        "gpu-0/utilisation_percent": noisy(93, 3),
        "gpu-1/utilisation_percent": noisy(91, 3, seed=2),
        "gpu-0/memory_percent": noisy(81, 0.3),
        "gpu-1/memory_percent": noisy(81, 0.3, seed=2),
        "rank-0/step_s": lambda host, row: source.gauss(0.25, 0.01),
        "rank-1/step_s": lambda host, row: source.gauss(0.25, 0.01),
        "rank-0/data_wait_s": lambda host, row: source.uniform(0, 0.002),
        "rank-1/data_wait_s": lambda host, row: source.uniform(0, 0.002),
        "rank-0/steps": lambda host, row: row * 2.0,
        "rank-0/num_processes": lambda host, row: 4.0,
        "rank-1/num_processes": lambda host, row: 4.0,
    }
    return run(columns | changes, rows=rows, hosts=("algo-1", "algo-2"))


def run_with_pauses(rows=6000):
    """Return a good run: a slow start, a checkpoint every ten minutes, occasional evaluations, and steps that vary."""
    source = random.Random(11)

    def is_pause(row):
        return row < 400 or row % 1200 < 60

    def gpu(seed):
        busy = noisy(88, 6, seed)
        return lambda host, row: 0.0 if is_pause(row) else busy(host, row)

    columns = {
        "host/cpu_percent": lambda host, row: 760.0 if is_pause(row) else source.uniform(150, 350),
        "machine/cpu_iowait_percent": lambda host, row: 500.0 if is_pause(row) else 5.0,
        "gpu-0/utilisation_percent": gpu(1),
        "gpu-1/utilisation_percent": gpu(2),
        "gpu-0/memory_percent": lambda host, row: 2.0 if row < 400 else 88.0,
        "gpu-1/memory_percent": lambda host, row: 2.0 if row < 400 else 88.0,
        "rank-0/step_s": lambda host, row: None if row < 400 else source.uniform(0.2, 0.4),
        "rank-0/data_wait_s": lambda host, row: None if row < 400 else 0.01,
        "rank-0/num_processes": lambda host, row: 1.0,
    }
    return run(columns, rows=rows)


def without_gpus(rows=3000):
    """Return a good run without GPUs, on processors that are all busy."""
    columns = {
        "host/cpu_percent": noisy(95, 2),
        "machine/cpu_iowait_percent": lambda host, row: 1.0,
        "host/memory_percent": noisy(30, 1),
        "rank-0/cpu_percent": noisy(95, 2),
        "rank-0/step_s": lambda host, row: 0.1 if row % 500 else 0.4,
        "rank-0/data_wait_s": lambda host, row: 0.001,
        "rank-0/num_processes": lambda host, row: 2.0,
    }
    return run(columns, rows=rows, num_cpus=1.0, num_gpus=0)
