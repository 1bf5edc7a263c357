"""Accepted CreateTrainingJob a second, and p99 of DescribeTrainingJob with 10,000 jobs stored, against moto.

Both servers are driven by the same boto3 load program in processes of its own, one after the other, in the same run.
moto keeps jobs in memory and verifies no signature; ours verifies each request and commits each job to disk before it
answers. A job that holds every host is started first, so that none of the accepted ones begins to run beside the load.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

from benchmarks.lines import Line, percentile
from benchmarks.service import free_port, running_service

SECONDS = 30.0
NUM_STORED = 10_000
NUM_DESCRIBED = 3_000
NUM_CLIENTS = 2
GOAL_PER_S = 500
GOAL_P99_MS = 20.0
SETTINGS = 'max_hosts = 1\n[images]\n"bench:*" = "bench"\n[environments]\nbench = "{python}"\n'


def run(quick: bool) -> Iterator[Line]:
    """Measure both servers."""
    seconds, num_stored, num_described = (2.0, 200, 100) if quick else (SECONDS, NUM_STORED, NUM_DESCRIBED)
    from benchmarks.service import TRAIN_PYTHON

    with running_service(SETTINGS.format(python=TRAIN_PYTHON)) as service:
        _load(service.environment, "block", 1, 1)
        ours = _measure(service.environment, seconds, num_stored, num_described)
    theirs = _measure_moto(seconds, num_stored, num_described)
    peer = f"moto {version('moto')}"
    yield Line(
        case=f"boto3,clients={NUM_CLIENTS},seconds={seconds:g}",
        metric="accepted_per_s",
        unit="1/s",
        better="higher",
        ours=ours["accepted_per_s"],
        peers={peer: theirs["accepted_per_s"]},
        bound=None,
        bound_note="the load programs take most of the machine: boto3 alone needs about 1 ms of CPU a call",
        goal=f">= {GOAL_PER_S}",
        met=ours["accepted_per_s"] >= GOAL_PER_S,
        samples=int(ours["accepted"]),
        verified=ours["stored_is_right"],
        details={"accepted": ours["accepted"], "create_p99_ms": ours["create_p99_ms"]},
    )
    yield Line(
        case=f"boto3,stored={num_stored}",
        metric="describe_p99_ms",
        unit="ms",
        better="lower",
        ours=ours["describe_p99_ms"],
        peers={peer: theirs["describe_p99_ms"]},
        goal=f"<= {GOAL_P99_MS:g}",
        met=ours["describe_p99_ms"] <= GOAL_P99_MS,
        samples=num_described,
        verified=ours["described_is_right"],
        details={"describe_p50_ms": ours["describe_p50_ms"]},
    )


def _measure(environment: dict[str, str], seconds: float, num_stored: int, num_described: int) -> dict[str, Any]:
    created = _load(environment, "create", NUM_CLIENTS, seconds)
    accepted = sum(item["accepted"] for item in created)
    latencies = [value for item in created for value in item["latencies_ms"]]
    if accepted < num_stored:
        _load(environment, "fill", NUM_CLIENTS, (num_stored - accepted) // NUM_CLIENTS + 1)
    described = _load(environment, "describe", 1, num_described)[0]
    return {
        "accepted": accepted,
        "accepted_per_s": accepted / max(item["seconds"] for item in created),
        "create_p99_ms": percentile(latencies, 99),
        "describe_p50_ms": statistics.median(described["latencies_ms"]),
        "describe_p99_ms": percentile(described["latencies_ms"], 99),
        "described_is_right": described["is_right"],
        "stored_is_right": all(item["is_right"] for item in created),
    }


def _measure_moto(seconds: float, num_stored: int, num_described: int) -> dict[str, Any]:
    port = free_port()
    command = [sys.executable, "-c", f"from moto.server import main; main(['-p', '{port}'])"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        environment = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "x",
            "AWS_SECRET_ACCESS_KEY": "x",
            "AWS_DEFAULT_REGION": "us-west-2",
        }
        _wait_for_port(port)
        return _measure(environment, seconds, num_stored, num_described)
    finally:
        server.kill()
        server.wait()


def _wait_for_port(port: int) -> None:
    import socket

    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with socket.socket() as connection:
            if connection.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise SystemExit("moto's server did not start within 30 s")


def _load(environment: dict[str, str], act: str, num_clients: int, amount: float) -> list[dict[str, Any]]:
    print(f"{act} with {num_clients} clients: {amount:g}", file=sys.stderr)
    command = [sys.executable, "-m", "benchmarks.control.api_load", act, str(amount)]
    clients = [
        subprocess.Popen([*command, str(index)], env={"PATH": "/usr/bin:/bin", **environment}, stdout=subprocess.PIPE)
        for index in range(num_clients)
    ]
    results = []
    for client in clients:
        output, _ = client.communicate(timeout=600)
        if client.returncode != 0:
            raise SystemExit(f"the load program failed with {client.returncode}")
        results.append(json.loads(output))
    return results
