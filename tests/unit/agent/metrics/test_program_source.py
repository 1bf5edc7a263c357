"""Real processes, measured: ranks that compute, sleep, write, fork and end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clary.agent.host.limits.cgroups import HostCgroup
from clary.agent.metrics.cgroup_texts import Throttling
from clary.agent.metrics.kept_files import KeptFile, OpenFiles, read_list
from clary.agent.metrics.process_table import ProcessTable
from clary.agent.metrics.program_source import ProgramSource, throttled_values
from clary.agent.metrics.sources import AgentSource, DiskSource, MachineSource
from clary.base.processes import live_descendants
from clary.contract.launch_plan import Resources

DEADLINE_S = 40.0
SPIN = "while True: pass"
SLEEP = "import time; time.sleep(600)"


@pytest.fixture
def start():
    """Return a function that starts a first process with children, some of them ranks; all end with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*children: tuple[str, str], entry_files: tuple[str, ...] = ()) -> int:
        lines = ["import os, subprocess, sys, time"]
        lines += [f"open({path!r}, 'w').write('0')" for path in entry_files]
        for rank, script in children:
            variables = f"dict(os.environ, RANK={rank!r})" if rank else "dict(os.environ)"
            lines.append(f"subprocess.Popen([sys.executable, '-c', {script!r}], env={variables})")
        lines.append("time.sleep(600)")
        text = "\n".join(lines)
        process = subprocess.Popen([sys.executable, "-c", text], start_new_session=True, env={**os.environ, "RANK": ""})
        started.append(process)
        return process.pid

    yield start
    for process in started:
        for pid in (*live_descendants(process.pid), process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


@pytest.fixture
def source_of():
    made: list[ProgramSource] = []
    before = set(os.listdir("/proc/self/fd"))

    def source_of(first_pid: int, **options: object) -> ProgramSource:
        made.append(ProgramSource(first_pid, ranks=options.pop("ranks", {}), has_own_network=False, **options))
        return made[-1]

    yield source_of
    for source in made:
        source.close()
    assert set(os.listdir("/proc/self/fd")) <= before


def read_until(source: ProgramSource, holds, *, pause_s: float = 0.1) -> dict[str, float]:
    deadline_s = time.monotonic() + DEADLINE_S
    while True:
        values = source.read(time.monotonic())
        if holds(values):
            return values
        assert time.monotonic() < deadline_s, values
        time.sleep(pause_s)


def cpu_s_over(source: ProgramSource, span_s: float, *names: str) -> dict[str, float]:
    """Return the processor time that the rows of `span_s` seconds add up to."""
    sums = dict.fromkeys(names, 0.0)
    last_s = time.monotonic()
    source.read(last_s)
    end_s = last_s + span_s
    while last_s < end_s:
        time.sleep(0.2)
        now_s = time.monotonic()
        values = source.read(now_s)
        for name in names:
            sums[name] += values[name] / 100 * (now_s - last_s)
        last_s = now_s
    return sums


def children_of(first_pid: int) -> list[int]:
    """Return the children as soon as they exist; the first process is in its cgroup by then."""
    deadline_s = time.monotonic() + DEADLINE_S
    while not (children := list(live_descendants(first_pid))):
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    return children


def used_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_the_processor_time_of_a_rank_matches_the_kernels_count(start, source_of):
    first_pid = start(("0", SPIN), ("1", SLEEP))
    source = source_of(first_pid)
    read_until(source, lambda values: "rank-0/cpu_percent" in values and "rank-1/cpu_percent" in values)
    (spinner,) = [pid for pid in live_descendants(first_pid) if b"True" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    before_s = used_s(spinner)
    sums = cpu_s_over(source, 3.0, "rank-0/cpu_percent", "rank-1/cpu_percent", "host/cpu_percent")
    counted_s = used_s(spinner) - before_s
    assert counted_s > 0.1, "even on a busy machine something is computed"
    # tolerance: a tick of the kernel's clock at either end of each row, and the time between two readings
    assert sums["rank-0/cpu_percent"] == pytest.approx(counted_s, abs=1.0)
    assert sums["rank-1/cpu_percent"] < 0.5
    assert sums["host/cpu_percent"] >= sums["rank-0/cpu_percent"] - 0.01


def test_a_rank_is_measured_with_everything_below_it(start, source_of):
    forks = f"import os\nfor _ in range(3):\n  if os.fork() == 0: break\ndata = bytearray(30_000_000)\n{SLEEP}"
    source = source_of(start(("7", forks), ("", SLEEP)))
    values = read_until(source, lambda values: values.get("rank-7/memory_bytes", 0) > 4 * 30_000_000)
    assert values["rank-7/num_processes"] == values["rank-7/num_threads"] == 4
    assert values["host/num_processes"] == 6
    assert values["host/memory_bytes"] > values["rank-7/memory_bytes"]
    assert [name for name in values if name.startswith("rank-") and not name.startswith("rank-7/")] == []


def test_a_rank_that_the_agent_has_started_needs_no_variable(start, source_of):
    first_pid = start(("", SLEEP))
    (child,) = children_of(first_pid)
    source = source_of(first_pid, ranks={child: 5})
    assert read_until(source, lambda values: "rank-5/cpu_percent" in values)["rank-5/num_processes"] == 1


def test_short_lived_processes_make_no_rate_negative_or_absurd(start, source_of):
    # Each child lives briefly and is reaped, which adds all its processor time to its parent.
    busy = (
        "import os\n"
        "while True:\n"
        "  pids = [os.fork() for _ in range(1)]\n"
        "  if 0 in pids:\n"
        "    sum(range(2_000_000)); os._exit(0)\n"
        "  os.waitpid(pids[0], 0)\n"
    )
    source = source_of(start(("0", busy)))
    read_until(source, lambda values: "rank-0/cpu_percent" in values)
    rows = []
    for _ in range(30):
        time.sleep(0.05)
        rows.append(source.read(time.monotonic()))
    seen = [row["rank-0/cpu_percent"] for row in rows if "rank-0/cpu_percent" in row]
    assert min(seen) >= 0
    assert sum(seen) > 0
    assert sum(seen) / len(seen) < 150, "one process computes at a time"


def test_bytes_that_a_rank_writes_to_the_disk_are_counted(start, source_of, tmp_path):
    writes = (
        f"import os\nwith open({str(tmp_path / 'data')!r}, 'wb') as file:\n  file.write(bytes(20_000_000))\n{SLEEP}"
    )
    source = source_of(start(("0", writes)))
    written = 0.0
    last_s, deadline_s = None, time.monotonic() + DEADLINE_S
    while written < 20_000_000:
        now_s = time.monotonic()
        values = source.read(now_s)
        if last_s is not None:
            written += values.get("rank-0/write_bytes_s", 0.0) * (now_s - last_s)
        last_s = now_s
        assert now_s < deadline_s, values
        time.sleep(0.05)
    assert written < 25_000_000


def test_a_program_that_has_ended_leaves_nothing_to_measure_and_no_error(source_of):
    process = subprocess.Popen([sys.executable, "-c", SLEEP])
    source = source_of(process.pid)
    read_until(source, lambda values: values["host/num_processes"] == 1)
    process.kill()
    process.wait()
    assert source.read(time.monotonic())["host/num_processes"] == 0


def test_a_host_without_its_own_network_has_no_network_series(start, source_of):
    source = source_of(start())
    assert not [name for name in read_until(source, lambda values: "host/cpu_percent" in values) if "network" in name]


def test_a_host_with_its_own_network_reports_its_traffic(start):
    source = ProgramSource(start(), ranks={}, has_own_network=True)
    read_until(source, lambda values: "host/network_received_bytes_s" in values)
    source.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="a cgroup of its own is made: needs root")
def test_a_host_with_a_cgroup_of_its_own_is_listed_and_counted_by_it(start, source_of):
    cgroup = HostCgroup.create(f"metrics-test-{os.getpid()}", Resources(num_cpus=0.3, memory_bytes=2**30))
    if cgroup.not_enforced:
        cgroup.remove()
        pytest.skip(f"this machine has no cgroups to make: {cgroup.not_enforced}")
    try:
        first_pid = start(("0", SLEEP), entry_files=cgroup.entry_files)
        children_of(first_pid)
        source = source_of(first_pid)
        values = read_until(source, lambda values: {"rank-0/cpu_percent", "host/cpu_throttled_percent"} <= set(values))
        assert values["host/memory_limit_bytes"] == 2**30
        assert 0 < values["host/memory_percent"] < 100
        assert values["host/num_processes"] == 2
        # Whether the host is throttled depends on other load on the machine.
        assert 0 <= values["host/cpu_throttled_percent"] <= 100
        assert values["host/cpu_throttled_time_percent"] >= 0
        assert values["host/oom_kills"] == 0
    finally:
        cgroup.kill_all()
        assert cgroup.remove() is None


def test_refused_processor_time_is_a_share_of_periods_and_of_time():
    then = Throttling(num_periods=100, num_throttled=10, throttled_s=3.0)
    now = Throttling(num_periods=105, num_throttled=14, throttled_s=3.75)
    assert throttled_values(now, then, 0.5) == {
        "host/cpu_throttled_percent": 80.0,
        "host/cpu_throttled_time_percent": 150.0,
    }
    # No period passes while no process is runnable.
    assert throttled_values(then, then, 0.5)["host/cpu_throttled_percent"] == 0.0


def test_processes_beyond_the_limit_of_open_files_are_read(start, monkeypatch):
    monkeypatch.setattr("clary.agent.metrics.process_table.MAX_OPEN_FILES", 3)
    first_pid = start(("0", SLEEP), ("1", SLEEP), ("2", SLEEP))
    table = ProcessTable(first_pid, ranks={}, members=None)
    deadline_s = time.monotonic() + DEADLINE_S
    while len({reading.rank for reading in table.read().values()}) < 4:
        assert time.monotonic() < deadline_s
        table.look()
        time.sleep(0.05)
    table.close()


def test_a_process_that_becomes_a_rank_after_its_fork_is_recognised(source_of):
    script = (
        "import os, sys, time; sys.stdin.readline(); os.environ['RANK'] = '9'; os.execv(sys.executable, sys.argv[1:])"
    )
    command = [sys.executable, "-c", script, sys.executable, "-c", SLEEP]
    first = subprocess.Popen(["sh", "-c", '"$@"; true', "sh", *command], stdin=subprocess.PIPE, start_new_session=True)
    source = source_of(first.pid)
    values = read_until(source, lambda values: values["host/num_processes"] == 2)
    assert "rank-9/num_processes" not in values
    first.stdin.write(b"\n")
    first.stdin.close()
    assert read_until(source, lambda values: "rank-9/num_processes" in values)["rank-9/num_processes"] == 1
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()


def test_a_kept_file_of_an_ended_process_reads_none_and_frees_its_slot():
    process = subprocess.Popen([sys.executable, "-c", SLEEP])
    budget = OpenFiles(1)
    file = KeptFile(f"/proc/{process.pid}/stat", budget)
    assert file.read().startswith(str(process.pid).encode())
    assert budget.num_left == 0
    process.kill()
    process.wait()
    assert file.read() is None
    file.close()
    file.close()
    assert budget.num_left == 1
    assert read_list(f"/proc/{process.pid}/net/dev") is None


def test_sources_of_agent_machine_and_disk_report_their_values(tmp_path):
    agent, machine, disk = AgentSource(), MachineSource(), DiskSource((tmp_path / "not-there", tmp_path))
    for source in (agent, machine, disk):
        source.read(0.0)
    sum(range(3_000_000))
    values = agent.read(2.0) | machine.read(2.0) | disk.read(2.0)
    assert values["agent/memory_bytes"] > 1_000_000
    assert values["agent/cpu_percent"] > 0
    assert values["machine/cpu_percent"] >= 0
    assert values["machine/memory_available_bytes"] > 0
    assert 0 <= values["host/disk_used_percent"] <= 100
    assert values["host/disk_used_bytes"] + values["host/disk_available_bytes"] > 0
    assert DiskSource((tmp_path / "not-there",)).read(0.0) == {}
    agent.close()


def test_a_process_whose_parent_ends_during_a_scan_is_found_by_the_next_scan(monkeypatch):
    def stat(pid: int, parent: int) -> bytes:
        fields = ["S", str(parent), *["0"] * 15, "1", "0", str(pid), "0", "5", "0"]
        return f"{pid} (x) {' '.join(fields)}".encode()

    class FakeFile:
        """A fake file in /proc."""

        def __init__(self, path: str, _budget: object = None) -> None:
            self._path = path

        def read(self) -> bytes | None:
            return files.get(self._path)

        def close(self) -> None:
            pass

    monkeypatch.setattr("clary.agent.metrics.process_table.KeptFile", FakeFile)
    monkeypatch.setattr("clary.agent.metrics.process_table.os.listdir", lambda _path: ["1", "10", "11", "12", "self"])
    # 11 has ended between the list and its reading; 12, its child, still shows it as its parent.
    files = {"/proc/1/stat": stat(1, 0), "/proc/10/stat": stat(10, 1), "/proc/12/stat": stat(12, 11)}
    table = ProcessTable(10, ranks={}, members=None)
    table.look()
    assert set(table.read()) == {10}
    files["/proc/12/stat"] = stat(12, 10)
    table.look()
    assert set(table.read()) == {10, 12}
