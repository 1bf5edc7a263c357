"""p99 of the health check while strangers attack the port, and the memory that the service holds for their bodies.

Each attack comes from a process of its own, without a key: 8 MB of JSON for the door where people sign in, bodies of
8 MB on 120 connections, headers and bodies that come a piece a second on 400 connections, and the JSON once more from
within a job, through the relay of its network. The health check is asked on a new connection each time, as by a
balancer that watches the service. Machine and attack share the processors: `quiet` is the same without an attack.
"""

from __future__ import annotations

import http.client
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.control.edge_attack import ATTACKS, MIB
from benchmarks.lines import ROOT, Line, percentile
from benchmarks.service import TRAIN_PYTHON, BenchmarkService, running_service

SECONDS = 20.0
PAUSE_S = 0.02  # between two health checks
BOUND_MS = 250.0
PREDICTED_MS = 25.0  # a turn of the event loop and five milliseconds of a thread that parses, on a busy machine
MEMORY_BOUND_MIB = 100.0
SETTINGS = 'max_hosts = 1\n[images]\n"bench:*" = "bench"\n[environments]\nbench = "{python}"\n'


def run(quick: bool) -> Iterator[Line]:
    """Measure each attack."""
    seconds = 3.0 if quick else SECONDS
    with running_service(SETTINGS.format(python=TRAIN_PYTHON)) as service:
        port = urlsplit(service.environment["AWS_ENDPOINT_URL"]).port or 0
        yield _line(service, port, "quiet", seconds, lambda: None)
        for kind in ATTACKS:
            command = [sys.executable, "-m", "benchmarks.control.edge_attack", kind, str(port), str(seconds)]
            yield _line(service, port, kind, seconds, lambda command=command: _from_here(command))  # type: ignore[misc]
        yield _line(service, port, "json-through-relay", seconds, lambda: _from_job(service, port, seconds))


def _from_here(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)


def _from_job(service: BenchmarkService, port: int, seconds: float) -> subprocess.Popen[bytes]:
    """Start a job that attacks, wait until it runs, and return a process that ends when its attack does."""
    name = f"edge-{int(time.time())}"
    request = {
        "TrainingJobName": name,
        "RoleArn": "arn:aws:iam::000000000000:role/ClaryExecutionRole",
        "AlgorithmSpecification": {
            "TrainingImage": "bench:1",
            "TrainingInputMode": "File",
            "ContainerEntrypoint": [str(TRAIN_PYTHON), "-S", str(Path(__file__).with_name("edge_attack.py"))],
            "ContainerArguments": ["json", str(port), str(seconds + 5)],
        },
        "OutputDataConfig": {"S3OutputPath": "s3://clary/out"},
        "ResourceConfig": {"InstanceCount": 1, "InstanceType": "ml.m5.large", "VolumeSizeInGB": 1},
        "StoppingCondition": {"MaxRuntimeInSeconds": 600},
    }
    import boto3

    environment = service.environment
    keys = {name: environment[name.upper()] for name in ("aws_access_key_id", "aws_secret_access_key")}
    client = boto3.client(
        "sagemaker", endpoint_url=environment["AWS_ENDPOINT_URL"], region_name=environment["AWS_REGION"], **keys
    )
    client.create_training_job(**request)
    deadline_s = time.monotonic() + 60
    while (facts := client.describe_training_job(TrainingJobName=name))["SecondaryStatus"] != "Training":
        if time.monotonic() > deadline_s or "FailureReason" in facts:
            raise SystemExit(
                f"{name} did not begin within 60 s: {facts.get('FailureReason', facts['SecondaryStatus'])}"
            )
        time.sleep(0.1)
    follow = [sys.executable, "-m", "clary.cli.main", "logs", name, "--follow"]
    return subprocess.Popen(follow, env=service.own_environment, stdout=subprocess.PIPE)


def _line(
    service: BenchmarkService,
    port: int,
    kind: str,
    seconds: float,
    attack: Callable[[], subprocess.Popen[bytes] | None],
) -> Line:
    before_mib = _memory_mib(service)
    attacker = attack()
    if attacker is not None:
        time.sleep(1.0)  # for its interpreter to start
    times_ms: list[float] = []
    num_failed = 0
    peak_mib = before_mib
    end_s = time.monotonic() + seconds - 1.0
    while time.monotonic() < end_s:
        began_s = time.perf_counter()
        num_failed += not _is_healthy(port)
        times_ms.append((time.perf_counter() - began_s) * 1000)
        peak_mib = max(peak_mib, _memory_mib(service))
        time.sleep(PAUSE_S)
    output = attacker.communicate(timeout=120)[0] if attacker is not None else b'{"count": 0}'
    p99_ms = percentile(times_ms, 99)
    grown_mib = peak_mib - before_mib
    return Line(
        case=kind,
        metric="health_p99_ms",
        unit="ms",
        better="lower",
        ours=p99_ms,
        bound=PREDICTED_MS,
        bound_note="prediction, on a machine that does nothing else",
        goal=f"<= {BOUND_MS:g}",
        met=p99_ms <= BOUND_MS and grown_mib <= MEMORY_BOUND_MIB,
        samples=len(times_ms),
        verified=num_failed == 0 and b'"count"' in output,
        details={
            "p50_ms": statistics.median(times_ms),
            "max_ms": max(times_ms),
            "failed": num_failed,
            "memory_grown_mib": round(grown_mib, 1),
            "attacks": output.decode(errors="replace").strip()[-40:],
        },
    )


def _is_healthy(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", "/clary/v1/health")
        answer = connection.getresponse()
        answer.read()
        return answer.status == http.HTTPStatus.OK
    except OSError:
        return False
    finally:
        connection.close()


def _memory_mib(service: BenchmarkService) -> float:
    pid = json.loads((service.home / "run" / "service.json").read_text())["pid"]
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / MIB
    return 0.0
