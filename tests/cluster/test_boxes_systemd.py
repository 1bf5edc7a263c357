"""A box whose user has a real systemd: it restarts the daemon after kills and reboots. Needs root and systemd.

The machine of the tests need not be booted by systemd: the box runs only a user's systemd, and `/run/systemd/system`
makes it believe that the machine was.
"""

import os
from pathlib import Path

import pytest
from box_head_service import until
from box_lease import TAG, Lease

pytest_plugins = ["box_world"]
SYSTEMD = Path("/usr/lib/systemd/systemd")
pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces of machines: needs root"),
    pytest.mark.skipif(not SYSTEMD.exists(), reason=f"{SYSTEMD} is not there: install systemd"),
    pytest.mark.long(60),
]

UNIT = "clary-node-box1.service"
PLACE = "/run/user/0"


class UserSystemd:
    """The systemd of user root on box1; another user's systemd needs cgroups that are not delegated here."""

    def __init__(self, bed):
        self.bed = bed
        self._variables = {"XDG_RUNTIME_DIR": PLACE, "HOME": f"{bed.folder}/home/root"}

    def start(self):
        """Start the user's systemd as a login does, with the units that it starts at boot."""
        self.bed.run("box1", "mkdir", "-p", "-m", "700", "/run/systemd/system", PLACE)
        words = f"setsid {SYSTEMD} --user >/run/systemd.log 2>&1 </dev/null &"
        self.bed.run("box1", "sh", "-c", words, **self._variables)
        until(lambda: self.ctl("show", "--property=Version", "--value"), "systemd of the user answers")

    def ctl(self, *words):
        """Return the output of systemctl; empty if it fails."""
        done = self.bed.run("box1", "systemctl", "--user", *words, check=False, **self._variables)
        return done.stdout.strip() if done.returncode == 0 else ""

    def stop(self):
        """End the user's systemd and its processes; our units have been removed before, or end with it."""
        self.ctl("exit")
        until(lambda: not self.bed.processes("box1"), "systemd of the user ends")


@pytest.fixture
def systemd(bed, service):
    made = UserSystemd(bed)
    made.start()
    yield made
    if bed.rows():
        bed.clary("hosts", "remove", "box1")
    made.stop()
    config = bed.home_of("box1", "root") / ".config"
    left = [path for path in config.rglob("*") if not path.is_dir()]
    for folder in sorted((path for path in (config, *config.rglob("*")) if path.is_dir()), reverse=True):
        if not left:
            folder.rmdir()
    assert left == [], "units are taken away with their box"


def test_systemd_restarts_a_killed_daemon_and_its_lease_continues(bed, service, systemd):
    bed.clary("hosts", "add", "root@box1")
    assert systemd.ctl("is-active", UNIT) == "active"
    assert bed.rows()["box1"]["restarts"].startswith("systemd of the user")
    lease = Lease(bed, service, user="root").begin()
    killed = lease.pid_of("run")
    lease.kill("run")
    until(lambda: systemd.ctl("show", UNIT, "--property=NRestarts", "--value") == "1", "systemd starts it again")
    until(lambda: lease.pid_of("run") != killed, "the next daemon is there")
    until(lambda: bed.rows()["box1"]["silent_s"] < 2.0, "it asks")
    assert lease.pid in bed.processes("box1")
    assert (lease.member["is_alive"], lease.num_begun) == (True, 1)
    assert service.ask("end_host", TAG, 0) == "certain"


def test_after_a_reboot_systemd_starts_the_daemon_without_adding_the_box_again(bed, service, systemd):
    bed.clary("hosts", "add", "root@box1")
    lease = Lease(bed, service, user="root").begin()
    bed.power_off("box1")
    bed.power_on("box1")
    systemd.start()
    until(lambda: not lease.member["is_alive"], "the host is lost", limit_s=40.0)
    until(lambda: bed.rows()["box1"]["silent_s"] < 2.0, "the box is heard again", limit_s=40.0)
    assert service.ask("end_host", TAG, 0) == "certain"
    until(lambda: bed.rows()["box1"]["state"] == "ready", "the box can have the next host")
    assert lease.num_begun == 1


def test_a_box_that_is_removed_leaves_no_unit(bed, service, systemd):
    bed.clary("hosts", "add", "root@box1")
    bed.clary("hosts", "remove", "box1")
    until(lambda: not systemd.ctl("is-active", UNIT), "the daemon ends")
    assert UNIT not in systemd.ctl("list-unit-files")
