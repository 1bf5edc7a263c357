"""Cgroups of version 2 on a real kernel, which `make test-cgroup2` boots; on other machines these tests are skipped."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import clary
from clary.agent.host.limits.cgroups import CgroupTree, HostCgroup, find_place
from clary.agent.metrics.host_cgroup import find_host_cgroup
from clary.contract.launch_plan import Resources

MIB = 1024 * 1024
LIMIT_S = 60
USER = 1000
SOURCES = str(Path(clary.__file__).parents[1])
MOUNT = Path("/sys/fs/cgroup")


def why_not():
    """Return the reason why these tests cannot run on this machine; empty if they can."""
    if os.geteuid() != 0:
        return "needs root; make test-cgroup2 boots a machine for it"
    try:
        place = find_place("memory", mountinfo=CgroupTree().mountinfo(), membership=CgroupTree().membership())
    except FileNotFoundError as error:
        return str(error)
    if place.version != 2 or "memory" not in Path(place.mount, "cgroup.controllers").read_text().split():
        return (
            "this machine has its memory controller in cgroups of version 1; make test-cgroup2 boots one that has not"
        )
    return ""


pytestmark = [pytest.mark.root, pytest.mark.skipif(bool(why_not()), reason=why_not() or "it can run")]


@contextlib.contextmanager
def cgroup_of(name, **resources):
    cgroup = HostCgroup.create(name, Resources(**{"num_cpus": 64.0, "memory_bytes": None, **resources}))
    try:
        yield cgroup
    finally:
        cgroup.kill_all()
        assert cgroup.remove() is None


def start_in(cgroup, script):
    enter = "".join(f"open({path!r}, 'w').write('0'); " for path in cgroup.entry_files)
    return subprocess.Popen([sys.executable, "-I", "-c", f"{enter}\n{script}"], stdout=subprocess.PIPE, text=True)


@contextlib.contextmanager
def spinning(cgroup, number):
    """Run processes that compute in a cgroup; None: outside every cgroup of ours."""
    script = "print('spins', flush=True)\nwhile True: pass"
    processes = [
        subprocess.Popen([sys.executable, "-I", "-c", script], stdout=subprocess.PIPE, text=True)
        if cgroup is None
        else start_in(cgroup, script)
        for _ in range(number)
    ]
    try:
        assert [process.stdout.readline() for process in processes] == ["spins\n"] * number
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def cpu_s(process):
    fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_process_beyond_the_memory_limit_is_killed_and_counted():
    with cgroup_of("oom", memory_bytes=64 * MIB) as cgroup:
        assert (cgroup.not_enforced, cgroup.limits_memory) == ((), True)
        process = start_in(cgroup, "x = bytearray(b'x' * (200 << 20))")
        assert process.wait(LIMIT_S) == -signal.SIGKILL
        process.communicate()
        assert cgroup.oom_kills() == 1
        peak = cgroup.peak_memory_bytes()
        assert peak is None or 60 * MIB < peak <= 64 * MIB


def test_swap_is_disabled_under_a_memory_limit():
    with cgroup_of("swap", memory_bytes=64 * MIB) as cgroup:
        path = Path(cgroup.folders[0], "memory.swap.max")
        assert not path.exists() or path.read_text().strip() == "0"


def test_counters_report_memory_processor_time_and_throttling():
    with cgroup_of("counted", memory_bytes=256 * MIB, num_cpus=0.25) as cgroup, spinning(cgroup, 2) as processes:
        counters = find_host_cgroup(processes[0].pid)
        first = counters.read(looks_closely=True)
        time.sleep(4)
        then = counters.read(looks_closely=True)
        assert set(counters.pids()) == {process.pid for process in processes}
        counters.close()
        assert then.memory_limit_bytes == 256 * MIB
        assert 0 < then.memory_bytes < 256 * MIB
        assert then.oom_kills == 0
        assert 0.4 < then.cpu_s - first.cpu_s < 2.5, "a quarter of a processor over four seconds, by emulation"
        assert then.throttling.num_throttled > first.throttling.num_throttled


def test_a_rank_gets_at_least_half_the_processor_time_of_another_process():
    with cgroup_of("one", num_cpus=2) as one, cgroup_of("two", num_cpus=2) as two:
        family = Path(one.folders[0]).parent
        assert (family / "cpu.weight").read_text().strip() == "400"
        with spinning(one, 2) as first, spinning(two, 2) as second, spinning(None, 8) as others:
            ranks = [*first, *second]
            before = [cpu_s(process) for process in [*ranks, *others]]
            time.sleep(12)
            used = [cpu_s(process) - then for process, then in zip([*ranks, *others], before, strict=True)]
        rank, other = sum(used[:4]) / 4, sum(used[4:]) / 8
        print(f"MEASURED a rank {rank / 12:.1%} of a core, another process {other / 12:.1%}")
        assert rank > other / 2
    assert not family.exists()


def test_frozen_processes_end_with_their_host():
    with cgroup_of("frozen", memory_bytes=128 * MIB) as cgroup, spinning(cgroup, 2) as processes:
        folder = Path(cgroup.folders[0])
        (folder / "cgroup.freeze").write_text("1")
        deadline = time.monotonic() + LIMIT_S
        while "frozen 1" not in (folder / "cgroup.events").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        before = [cpu_s(process) for process in processes]
        time.sleep(1)
        assert [cpu_s(process) for process in processes] == before
        cgroup.kill_all()
        assert [process.wait(LIMIT_S) for process in processes] == [-signal.SIGKILL] * 2


AS_USER = """
import json, os, subprocess, sys
sys.path.insert(0, {sources!r})
for path in {enter!r}:
    open(path, "w").write("0")
os.setgroups([]); os.setgid({user}); os.setuid({user})
from clary.agent.host.limits.cgroups import HostCgroup
from clary.contract.launch_plan import Resources
probe = [sys.executable, "-S", "-m", "clary.agent.host.limits.memory_support"]
environment = dict(PYTHONPATH={sources!r})
looked = json.loads(subprocess.run([*probe, "--look"], env=environment, stdout=subprocess.PIPE, check=True).stdout)
before = open("/proc/self/cgroup").read().split("::")[1].strip()
said = json.loads(subprocess.run(probe, env=environment, stdout=subprocess.PIPE, check=True).stdout)
facts = dict(looked=looked["kept_by"], said=said["kept_by"], before=before)
host = HostCgroup.create("host", Resources(num_cpus=1, memory_bytes=64 << 20))
facts.update(limits=host.limits_memory, why=host.not_enforced, after=open("/proc/self/cgroup").read().split("::")[1])
if host.limits_memory:
    enter = "; ".join(f"open({{path!r}}, 'w').write('0')" for path in host.entry_files)
    script = enter + "; x = bytearray(b'x' * (200 << 20))"
    facts.update(status=subprocess.run([sys.executable, "-I", "-c", script]).returncode, kills=host.oom_kills())
facts["refusal"] = host.remove()
print(json.dumps(facts))
"""


def as_user(*entered):
    """Make a host as an unprivileged user, in these cgroups or, without any, in our own; return the outcome."""
    script = AS_USER.format(sources=SOURCES, enter=[f"{folder}/cgroup.procs" for folder in entered], user=USER)
    done = subprocess.run(
        [sys.executable, "-I", "-c", script], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def prepared():
    """A cgroup that belongs to a user, as systemd delegates it."""
    folder = MOUNT / "prepared.slice" / "user"
    (MOUNT / "cgroup.subtree_control").write_text("+memory +cpu +pids")
    folder.parent.mkdir()
    (folder.parent / "cgroup.subtree_control").write_text("+memory +cpu +pids")
    folder.mkdir()
    for path in (folder, *(folder / f"cgroup.{name}" for name in ("procs", "subtree_control", "threads"))):
        os.chown(path, USER, USER)
    yield folder
    for left in sorted((path for path in folder.parent.rglob("*") if path.is_dir()), reverse=True):
        left.rmdir()
    folder.parent.rmdir()


def test_user_limits_hosts_in_a_delegated_cgroup_that_holds_processes(prepared):
    facts = as_user(prepared)
    assert (facts["looked"], facts["said"], facts["limits"]) == ("delegated", "delegated", True), facts
    assert facts["before"] == "/prepared.slice/user"
    assert facts["after"].strip() == "/prepared.slice/user/clary-service"
    assert (facts["status"], facts["kills"], facts["refusal"]) == (-signal.SIGKILL, 1, None)


def test_user_limits_hosts_beside_a_delegated_leaf_cgroup(prepared):
    leaf = prepared / "leaf"
    leaf.mkdir()
    os.chown(leaf, USER, USER)
    os.chown(leaf / "cgroup.procs", USER, USER)
    facts = as_user(leaf)
    assert (facts["said"], facts["limits"], facts["kills"]) == ("delegated", True, 1), facts
    assert facts["after"].strip() == "/prepared.slice/user/leaf"


def test_hosts_of_a_user_without_a_delegated_cgroup_are_watched_instead_of_limited():
    facts = as_user()
    assert (facts["looked"], facts["said"], facts["limits"]) == ("watch", "watch", False)
    assert "Permission denied" in facts["why"][0]


def test_limit_that_was_set_for_the_service_stays_above_its_hosts():
    """Root runs in a cgroup with its own limit, like a unit with MemoryMax: cgroups of hosts lie below that cgroup."""
    unit = MOUNT / "limited.service"
    (MOUNT / "cgroup.subtree_control").write_text("+memory +cpu +pids")
    unit.mkdir()
    (unit / "memory.max").write_text(str(512 * MIB))
    script = AS_USER.format(sources=SOURCES, enter=[f"{unit}/cgroup.procs"], user=0)
    done = subprocess.run(
        [sys.executable, "-I", "-c", script], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    facts = json.loads(done.stdout)
    assert (facts["said"], facts["limits"], facts["kills"]) == ("cgroup-2", True, 1), facts
    assert facts["after"].strip() == "/limited.service/clary-service"
    (unit / "clary-service").rmdir()
    unit.rmdir()
