"""Boxes through crashes of daemon, keeper, service, machine and cable: no host runs twice, no process is left."""

import json
import os
import signal
import time

import pytest
from box_head_service import until
from box_lease import TAG, Lease

pytest_plugins = ["box_world"]
pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces of machines: needs root"),
    pytest.mark.long(120),
]

OTHER = "pool_00000000000c"


@pytest.fixture
def lease(bed, service):
    bed.clary("hosts", "add", "ml@box1")
    return Lease(bed, service).begin()


def test_a_restarted_daemon_adopts_its_running_lease(bed, service, lease):
    lease.kill("run")
    assert lease.pid in bed.processes("box1")
    lease.repair()
    assert lease.pid in bed.processes("box1")
    assert lease.member["is_alive"]
    time.sleep(0.5)
    assert lease.num_begun == 1
    assert service.ask("end_host", TAG, 0) == "certain"
    assert not [args for args in bed.processes("box1").values() if "sleep 98765" in args or "boots/" in args]


def test_the_next_daemon_reports_an_agent_that_ended_while_none_ran(bed, service, lease):
    lease.kill("run")
    (lease.place / "leave").touch()
    until(lambda: lease.pid not in bed.processes("box1"), "the agent leaves")
    until(lambda: "sleep 98765" not in " ".join(bed.processes("box1").values()), "its keeper ends the rest")
    lease.repair()
    until(lambda: not lease.member["is_alive"], "its end is told")
    assert lease.member["why_dead"] == "its agent ended with exit code 7"
    assert lease.num_begun == 1


def test_the_end_of_an_agent_is_reported_at_once(bed, service, lease):
    began = time.monotonic()
    (lease.place / "leave").touch()
    until(lambda: not lease.member["is_alive"], "its end is told", limit_s=5.0)
    assert time.monotonic() - began < 2.0, "a daemon that waits for orders tells what happens meanwhile"
    assert lease.member["why_dead"] == "its agent ended with exit code 7"
    assert "sleep 98765" not in " ".join(bed.processes("box1").values())


def test_an_agent_dies_with_its_keeper(bed, service, lease):
    lease.kill("keep")
    until(lambda: not lease.member["is_alive"], "its end is told", limit_s=5.0)
    assert lease.member["why_dead"] == "the process that kept its agent was killed"
    assert lease.pid not in bed.processes("box1")
    assert "sleep 98765" not in bed.processes("box1").values(), "the daemon adopts what a keeper leaves"


def test_a_lease_counts_as_dead_after_its_daemon_and_keeper_are_killed_together(bed, service, lease):
    pids = [str(lease.pid_of("run")), str(lease.pid_of("keep"))]
    bed.run("box1", "kill", "-9", *pids)
    until(lambda: lease.pid not in bed.processes("box1"), "the agent dies with its keeper")
    lease.repair()
    until(lambda: not lease.member["is_alive"], "its end is told")
    assert lease.num_begun == 1
    # Known limit: once both are killed, nothing finds an orphan that has removed its mark from its environment.
    [orphan] = [pid for pid, args in bed.processes("box1").items() if args == "sleep 98765"]
    bed.run("box1", "kill", "-9", str(orphan))


def test_a_rebooted_box_loses_its_lease_and_takes_a_new_one(bed, service, lease):
    bed.power_off("box1")
    bed.power_on("box1")
    lease.repair()
    until(lambda: not lease.member["is_alive"], "its end is told")
    assert lease.member["why_dead"] == "box1 was started again"
    service.ask("ask", TAG, 1)
    until(lambda: service.told(TAG)["state"] == "granted", "the host starts once more")
    until(lambda: lease.num_begun == 2, "its boot begins")


def test_a_restarted_service_finds_its_boxes_leases_and_proofs(bed, service, lease):
    service.kill()
    time.sleep(1.0)
    assert lease.pid in bed.processes("box1")
    service.start()
    assert lease.member["is_alive"]
    assert service.told(TAG)["state"] == "granted"
    until(lambda: bed.rows()["box1"]["was_heard"], "the box finds the service again", limit_s=15.0)
    proof = json.loads((lease.place / "facts.json").read_text())["proof"]
    assert service.ask("why_not_proved", TAG, 0, proof) == ""
    assert service.ask("end_host", TAG, 0) == "certain"
    assert lease.num_begun == 1


def test_a_box_cut_off_from_the_network_is_lost_and_ends_its_host_before_the_next(bed, service, lease):
    bed.plug("box1", is_in=False)
    until(lambda: not lease.member["is_alive"], "its silence is told", limit_s=25.0)
    assert lease.member["why_dead"].startswith("box1 has not been heard of for ")
    assert service.ask("end_host", TAG, 0) == "out of reach"
    assert lease.pid in bed.processes("box1"), "nobody has told it"
    service.ask("ask", OTHER, 1)
    assert service.told(OTHER)["reason"] == "waits for 1 box: box1 is silent"
    bed.plug("box1", is_in=True)
    until(lambda: service.told(OTHER)["state"] == "granted", "the box gets the next host")
    assert lease.pid not in bed.processes("box1")
    assert service.ask("end_host", TAG, 0) == "certain"


def test_a_box_that_reconnects_before_the_timeout_keeps_its_host(bed, service, lease):
    bed.plug("box1", is_in=False)
    time.sleep(6.0)
    bed.plug("box1", is_in=True)
    until(lambda: bed.rows()["box1"]["silent_s"] < 2.0, "it is heard again", limit_s=20.0)
    assert lease.member["is_alive"]
    assert lease.pid in bed.processes("box1")
    assert lease.num_begun == 1


def test_a_box_removed_while_disconnected_ends_its_processes_when_it_reconnects(bed, service, lease):
    bed.plug("box1", is_in=False)
    bed.clary("hosts", "remove", "box1", "--force")
    assert bed.rows() == {}
    assert not lease.member["is_alive"]
    bed.plug("box1", is_in=True)
    until(lambda: not bed.processes("box1"), "it ends everything", limit_s=40.0)
    assert list(bed.home_of("box1", "ml").iterdir()) == []


def test_a_wrong_token_is_refused_and_ends_no_process(bed, service, lease):
    bed.run("box1", "kill", "-9", str(lease.pid_of("run")))
    (lease.folder / "token").write_text("f" * 64)
    [archive] = lease.folder.glob("node-*.pyz")
    inside = str(lease.folder).replace(str(bed.folder / "homes/box1"), str(bed.folder / "home"))
    daemon = f"/usr/bin/python3 -I -S {inside}/{archive.name} run {inside} >>{inside}/node.log 2>&1 </dev/null"
    bed.run("box1", "sh", "-c", f"setpriv --reuid=5000 --regid=5000 --clear-groups setsid {daemon} &")
    until(lambda: "refuses: 403" in (lease.folder / "node.log").read_text(), "it is refused")
    assert lease.pid in bed.processes("box1")
    lease.repair()
    assert lease.member["is_alive"]


@pytest.mark.parametrize("delay_s", [0.0, 0.02, 0.04, 0.06, 0.08, 0.1, 0.13, 0.16, 0.2, 0.3])
def test_a_daemon_killed_while_a_lease_starts_runs_the_boot_once(bed, service, delay_s):
    bed.clary("hosts", "add", "ml@box1")
    lease = Lease(bed, service)
    pid = lease.pid_of("run")
    service.ask("ask", TAG, 1)
    time.sleep(delay_s)
    os.kill(_outside(bed, "box1", pid), signal.SIGKILL)
    lease.repair()
    until(lambda: service.told(TAG)["state"] == "granted", "the host starts")
    until(lambda: (lease.place / "notes").exists(), "its boot begins")
    time.sleep(0.5)
    assert lease.num_begun == 1
    assert sum("boots/" in args for args in bed.processes("box1").values()) == 1


def _outside(bed, machine, pid):
    """Return the pid that a process of a box has in this machine's pid namespace."""
    space = os.stat(f"/proc/{bed.first_process(machine)}/ns/pid").st_ino
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{name}/ns/pid").st_ino != space:
                continue
            with open(f"/proc/{name}/status") as file:
                numbers = next(line for line in file if line.startswith("NSpid")).split()
        except (OSError, StopIteration):
            continue
        if int(numbers[-1]) == pid:
            return int(name)
    raise AssertionError(f"{machine} has no process {pid}")
