"""Verdicts on a single host: disk, memory, clock, GPUs."""

import json
from types import SimpleNamespace

import pytest

from clary.agent.health import host_checks
from clary.agent.health.gpu_checks import check_gpus, gpu_finding
from clary.agent.health.host_checks import available_memory, clock_offset, read_disk
from clary.agent.health.host_verdicts import GIB, MIB, DiskReading, clock_finding, disk_finding, memory_finding
from clary.contract.health import FindingState

OK, WARN, BAD, SKIPPED = FindingState.OK, FindingState.WARN, FindingState.BAD, FindingState.SKIPPED
LISTING = "0, NVIDIA H100, 0, 41\n1, NVIDIA H100, 0, 44\n"


@pytest.mark.parametrize(
    ("reading", "state", "words"),
    [
        (DiskReading(folder="/d", free_bytes=50 * GIB), OK, "50.0 GiB free at /d"),
        (DiskReading(folder="/d", free_bytes=50 * GIB, written_bytes=4 * MIB, write_s=0.1), OK, "40 MiB/s written"),
        (
            DiskReading(folder="/d", free_bytes=50 * GIB, written_bytes=MIB // 2, write_s=2.0),
            WARN,
            "expected 1 or more",
        ),
        (DiskReading(folder="/d", free_bytes=GIB), WARN, "expected 2 GiB or more"),
        (DiskReading(folder="/d", free_bytes=MIB), BAD, "expected 0.25 GiB or more"),
        (DiskReading(folder="/d", free_bytes=0, error="Read-only file system"), BAD, "cannot be written"),
    ],
)
def test_disks(reading, state, words):
    finding = disk_finding("algo-1", reading)
    assert finding.state is state
    assert words in finding.words
    assert bool(finding.cause) == (state in (WARN, BAD))


@pytest.mark.parametrize(
    ("available", "limit", "state"),
    [
        (8 * GIB, 4 * GIB, OK),
        (GIB // 2, 4 * GIB, WARN),
        (64 * MIB, 4 * GIB, BAD),
        (64 * MIB, 32 * MIB, OK),
        (GIB, None, OK),
        (None, GIB, SKIPPED),
    ],
)
def test_memory_against_the_limit_of_the_host(available, limit, state):
    assert memory_finding("algo-1", available, limit).state is state


@pytest.mark.parametrize(
    ("offset", "state", "words"),
    [
        (0.0, OK, "as the service's"),
        (1.9, OK, "1.900 s ahead of the service's"),
        (3.0, WARN, "3 s ahead of the service's"),
        (-90.0, BAD, "90 s behind the service's"),
        (None, SKIPPED, "nobody answered"),
    ],
)
def test_clocks(offset, state, words):
    finding = clock_finding("algo-1", offset, "nobody answered")
    assert finding.state is state
    assert words in finding.words
    assert finding.clock_offset_s == offset


@pytest.mark.parametrize(("ahead_s", "told_s"), [(0.0, 0.0), (5.0, 5.0), (-86_400.0, -86_400.0), (0.01, 0.0)])
def test_the_clock_offset_comes_from_the_exchange_with_the_shortest_round_trip(monkeypatch, ahead_s, told_s):
    now = {"s": 1000.0}
    ways_s = iter([(0.9, 0.1), (0.02, 0.02), (0.1, 0.7)])  # seconds for the request and for the response

    class FakeConnection:
        def __init__(self, place, timeout):
            assert (place, timeout > 0) == ("service:1", True)

        def request(self, method, path):
            assert (method, path) == ("GET", "/clary/v1/health")
            self.there_s, self.back_s = next(ways_s)

        def getresponse(self):
            now["s"] += self.there_s
            body = json.dumps({"now_s": now["s"]}).encode()
            now["s"] += self.back_s
            return SimpleNamespace(read=lambda _most: body)

        def close(self):
            pass

    monkeypatch.setattr(host_checks.http.client, "HTTPConnection", FakeConnection)
    clocks = SimpleNamespace(monotonic=lambda: now["s"], time=lambda: now["s"] + ahead_s)
    monkeypatch.setattr(host_checks, "time", clocks)
    offset_s, why = clock_offset("http://service:1")
    assert offset_s == pytest.approx(told_s, abs=1e-6)
    assert why == ""


@pytest.mark.parametrize(
    ("listing", "products", "state", "words"),
    [
        (LISTING, "0 right\n1 right\n", OK, "2 x NVIDIA H100"),
        (LISTING, "0 right\n1 wrong\n", BAD, "GPU 1 multiplies wrongly"),
        (LISTING, None, WARN, "the multiplication was not made"),
        (LISTING.replace("0, 44", "3, 44"), "0 right\n1 right\n", BAD, "uncorrected memory errors: GPU 1: 3"),
        (LISTING.replace(" 0, 44", " [N/A], 44"), "0 right\n1 right\n", OK, "2 x NVIDIA H100"),
        (LISTING.replace(" 0, 44", " [Insufficient Permissions], 44"), "0 right\n1 right\n", OK, "2 x NVIDIA H100"),
        (LISTING.replace(" 0, 44", " [GPU is lost], 44"), "0 right\n1 right\n", BAD, "read GPU 1: [GPU is lost]"),
        (LISTING.replace("0, 44", "0, 95"), "0 right\n1 right\n", WARN, "GPU 1: 95 C"),
        ("0, NVIDIA H100, 0, 41\n", "", BAD, "GPU 1 is missing, the driver lists 0"),
        ("No devices were found\n", None, BAD, "the driver lists none"),
        (None, None, BAD, "nvidia-smi does not answer"),
    ],
)
def test_gpus(listing, products, state, words):
    finding = gpu_finding("algo-1", (0, 1), listing=listing, products=products, has_computed=True)
    assert finding.state is state
    assert words in finding.words


def test_a_gpu_without_a_computation_check_is_judged_by_the_driver_alone():
    assert gpu_finding("algo-1", (0,), listing=LISTING, products=None, has_computed=False).state is OK


def test_the_disk_check_writes_a_file_and_removes_it(tmp_path):
    reading = read_disk(tmp_path / "algo-1", writes=True)
    assert reading.free_bytes > 0
    assert reading.written_bytes > 0
    assert list((tmp_path / "algo-1").iterdir()) == []
    assert read_disk(tmp_path, writes=False).write_s is None


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    assert read_disk(tmp_path / "file" / "algo-1", writes=True).error


def test_the_memory_of_this_machine_can_be_read():
    assert available_memory() > 0


def test_an_unreachable_service_leaves_the_clock_unchecked():
    offset, why = clock_offset("http://127.0.0.1:1")
    assert offset is None
    assert "did not say its time" in why


def test_gpus_multiply_by_the_numbers_that_the_driver_gives_them(tmp_path, monkeypatch):
    """Without the driver's order CUDA numbers GPUs by its own order, or only the visible GPUs."""
    programs = {
        "nvidia-smi": f"printf '{LISTING.encode('unicode_escape').decode()}'",
        "python": "env > $0.env; printf '0 right\\n1 right\\n'",
    }
    for name, line in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    plan = SimpleNamespace(environment=SimpleNamespace(python=str(tmp_path / "python")))
    host = SimpleNamespace(name="algo-1", resources=SimpleNamespace(gpu_indices=(0, 1)))
    assert check_gpus(plan, host, computes=True).state is OK
    seen = (tmp_path / "python.env").read_text().splitlines()
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in seen
    assert not [line for line in seen if line.startswith("CUDA_VISIBLE_DEVICES=")]
