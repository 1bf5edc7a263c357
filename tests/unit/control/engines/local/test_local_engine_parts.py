import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from clary.base.errors import EngineError
from clary.base.processes import ProcessId
from clary.contract.launch_plan import Isolation
from clary.control.engines.local import anchors, attempt_record, cleaning, isolation, killing
from clary.control.engines.local.cleaning import CGROUP_FAMILY
from clary.control.engines.local.machine_facts import free_memory_bytes, measure_machine
from clary.control.engines.local.network.network_building import hardware_address
from clary.control.engines.local.network.network_spec import RelaySpec

GIB = 1024**3


def test_hosts_of_a_network_have_distinct_addresses_of_one_prefix():
    for num_hosts in (1, 3, 250, 251, 700):
        found = [anchors.address_of(index, num_hosts) for index in range(num_hosts)]
        assert len(set(found)) == num_hosts
        assert {prefix for _, prefix in found} == {24 if num_hosts <= 250 else 16}
        assert not any(address.endswith((".0", ".255")) for address, _ in found)
    assert anchors.address_of(0, 2) == ("10.77.0.1", 24)


def test_relays_have_the_ports_of_the_urls():
    assert anchors.relays_to(["http://127.0.0.1:4570", "https://0.0.0.0:4571", "http://127.0.0.1:4570/x"]) == (
        RelaySpec(4570, "127.0.0.1", 4570),
        RelaySpec(4571, "127.0.0.1", 4571),
    )


@pytest.mark.parametrize("url", ["http://127.0.0.1", "127.0.0.1:4570", ""])
def test_url_without_port_is_refused(url):
    with pytest.raises(EngineError, match="expected scheme"):
        anchors.relays_to([url])


def test_hardware_address_is_locally_administered_and_unicast():
    assert hardware_address("10.77.0.3") == bytes([2, 0, 10, 77, 0, 3])


def test_trees_are_removed_logs_are_kept_and_links_are_not_followed(tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "data").write_text("x")
    host = tmp_path / "algo-1"
    (host / "ml" / "input").mkdir(parents=True)
    (host / "ml" / "input" / "train").symlink_to(precious)
    (host / "linked").symlink_to(precious)
    (host / "agent.log").write_text("log")
    work = host / "overlay" / "work"
    work.mkdir(parents=True)
    work.chmod(0)
    assert sorted(cleaning.remove_trees(host)) == [str(host / "ml"), str(host / "overlay")]
    assert (host / "agent.log").exists()
    assert (precious / "data").read_text() == "x"
    assert cleaning.remove_trees(host) == []


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="makes cgroups")
def test_cgroups_of_hosts_are_found_below_the_given_cgroups_and_their_ancestors(tmp_path):
    places = [Path(place) for place in cleaning.own_cgroup_places()]
    assert places
    assert all(place.is_dir() for place in places)
    name = f"clary-test-{os.getpid()}-algo-1"
    folder = places[0] / CGROUP_FAMILY / name
    had_family = folder.parent.is_dir()
    folder.mkdir(parents=True)
    try:
        assert cleaning.host_cgroups([str(places[0] / "a" / "b")], [name, "another-algo-1"]) == [str(folder)]
        assert cleaning.host_cgroups(map(str, places), [name]) == [str(folder)]
        assert cleaning.host_cgroups([str(tmp_path)], [name]) == []
    finally:
        folder.rmdir()
        if not had_family:
            with contextlib.suppress(OSError):  # a service that another test has started uses it by now
                folder.parent.rmdir()
    (tmp_path / CGROUP_FAMILY / name).mkdir(parents=True)
    assert cleaning.host_cgroups([str(tmp_path)], [name]) == [], "no folder outside of the kernel's is a cgroup"


def write_files(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_machine_counts_gpus_and_obeys_cgroup_limits(tmp_path):
    meminfo = {"proc/meminfo": "MemTotal:       16777216 kB\nMemFree: 1 kB\n"}
    write_files(tmp_path / "plain", meminfo)
    machine = measure_machine(tmp_path / "plain")
    assert (machine.memory_bytes, machine.num_gpus) == (16 * GIB, 0)
    assert machine.num_cpus == len(os.sched_getaffinity(0))
    files = {"sys/fs/cgroup/cpu.max": "100000 100000\n", "sys/fs/cgroup/memory.max": str(2 * GIB)}
    devices = dict.fromkeys(["dev/nvidia0", "dev/nvidia1", "dev/nvidiactl", "dev/nvidia-uvm"], "")
    write_files(tmp_path / "limited", meminfo | files | devices)
    machine = measure_machine(tmp_path / "limited")
    assert (machine.num_cpus, machine.memory_bytes, machine.num_gpus) == (1, 2 * GIB, 2)
    version_1 = {
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    }
    write_files(tmp_path / "unlimited", meminfo | version_1)
    assert measure_machine(tmp_path / "unlimited").memory_bytes == 16 * GIB
    assert measure_machine(tmp_path / "unlimited").num_cpus == len(os.sched_getaffinity(0))


def test_free_memory_is_bounded_by_the_limit_and_unknown_without_a_source(tmp_path):
    meminfo = {"proc/meminfo": "MemTotal:       16777216 kB\nMemAvailable:    8388608 kB\n"}
    write_files(tmp_path / "plain", meminfo)
    write_files(tmp_path / "limited", meminfo | {"sys/fs/cgroup/memory.max": str(2 * GIB)})
    write_files(tmp_path / "silent", {"proc/meminfo": "MemTotal:       16777216 kB\n"})
    found = [free_memory_bytes(tmp_path / name) for name in ("plain", "limited", "silent")]
    assert found == [8 * GIB, 2 * GIB, 0]


def test_the_setting_processes_is_obeyed_and_reports_shared_resources():
    chosen, sentences = isolation.choose_isolation("processes", {})
    assert chosen is Isolation.PROCESSES
    assert any("share this machine's network" in sentence for sentence in sentences)


def test_unknown_isolation_is_refused_by_name():
    with pytest.raises(EngineError, match="expected one of auto, namespaces, processes, got 'docker'"):
        isolation.choose_isolation("docker", {})


def test_refused_namespaces_mean_processes_with_the_reason_or_an_error_if_they_were_asked_for(monkeypatch):
    command = (sys.executable, "-S", "-c", 'print(\'{"error": "no luck", "has_user_namespace": true}\')')
    monkeypatch.setattr(isolation, "ANCHOR_COMMAND", command)
    chosen, sentences = isolation.choose_isolation("auto", {})
    assert chosen is Isolation.PROCESSES
    assert "no luck" in sentences[0]
    with pytest.raises(EngineError, match="no luck"):
        isolation.choose_isolation("namespaces", {})


def test_a_failing_probe_means_processes_with_its_last_output_as_the_reason(monkeypatch):
    monkeypatch.setattr(isolation, "ANCHOR_COMMAND", (sys.executable, "-S", "-c", "raise SystemExit('broken')"))
    chosen, sentences = isolation.choose_isolation("auto", {})
    assert chosen is Isolation.PROCESSES
    assert "broken" in sentences[0]


def test_kill_waits_until_the_process_is_gone_and_knows_a_dead_one():
    with subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(300)"]) as child:
        process = ProcessId.of(child.pid)
        assert killing.kill(ProcessId(child.pid, "1")) is False
        assert child.poll() is None
        assert killing.kill(process) is True
        assert child.wait() == -signal.SIGKILL
        assert killing.kill(process) is False


def test_descendants_are_found_through_generations():
    grandchild = "import time; time.sleep(300)"
    code = f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-S', '-c', {grandchild!r}], "
    code += "start_new_session=True); print(p.pid, flush=True); p.wait()"
    with subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE, text=True) as child:
        pid = int(child.stdout.readline())
        own = ProcessId.of(os.getpid())
        below = killing.descendants(own)
        assert {child.pid, pid} <= {process.pid for process in below}
        killing.kill(ProcessId.of(pid))
    assert killing.descendants(ProcessId(os.getpid(), "1")) == []


def test_attempts_are_listed_despite_vanishing_jobs_and_foreign_files(tmp_path):
    (tmp_path / "jobs/job/1").mkdir(parents=True)
    (tmp_path / "jobs/pool_0/1").mkdir(parents=True)
    (tmp_path / "jobs/gone").symlink_to(tmp_path / "nowhere")  # a listed folder that does not exist any more
    (tmp_path / "jobs/file").touch()
    found = attempt_record.attempt_folders(tmp_path / "jobs")
    assert found == [tmp_path / "jobs/job/1", tmp_path / "jobs/pool_0/1"]
    assert attempt_record.attempt_folders(tmp_path / "nowhere") == []
