"""Points of a launch at which a service kills itself, and waits of the tests that have it do so.

Where: services that are killed have `killed_services` on their PYTHONPATH; two modules name points, one an engine.
"""

import json
import time
from pathlib import Path

NUM_LINES = 12
PROGRAM = f"for i in $(seq {NUM_LINES}); do echo line $i of $(hostname); sleep 0.2; done"
# What is done, before or after it, and which call of it; in the order of a launch. An engine has its own in between.
ASKED_POINTS = {
    "before-the-allocation-is-stored": ("AllocationAsked", "before", 1),
    "after-the-allocation-is-stored": ("AllocationAsked", "after", 1),
}
GRANTED_POINTS = {
    "while-it-is-pending": ("not granted", "after", 1),
    "at-the-grant": ("granted", "after", 1),
    "after-the-attempt-is-stored": ("HostsAsked", "after", 1),
    "before-any-boot-enrols": ("enrol", "before", 1),
    "when-one-has-enrolled": ("enrolled", "after", 1),
    "when-all-have-enrolled": ("enrolled", "after", 2),
    "after-addresses-are-stored": ("NetworkReady", "after", 1),
    "after-boots-are-let-in": ("start_agents", "after", 1),
    "before-the-first-report": ("report", "before", 1),
    "while-one-host-prepares": ("HostReported preparing", "after", 1),
    "while-all-prepare": ("HostReported preparing", "after", 2),
}


def kill_point_of(home):
    """Return the file that tells the service of a state folder where to kill itself."""
    return home / "kill-point.json"


def service_variables(home):
    """Return the variables of a service that kills itself where its file says."""
    return {"PYTHONPATH": str(Path(__file__).parent / "killed_services"), "KILL_POINT_FILE": str(kill_point_of(home))}


def set_kill_point(home, point, job):
    """Have the service of a state folder kill itself at a point.

    Args:
        home: its state folder.
        point: what is done, before or after, and which call of it.
        job: that makes each test's words its own.
    """
    what, when, call = point
    kill_point_of(home).write_text(json.dumps({"point": what, "when": when, "call": call, "job": job}))


def soon(look, *, within_s=30.0, what="it"):
    """Return the first answer of a look that counts as true."""
    deadline = time.monotonic() + within_s
    while not (found := look()):
        assert time.monotonic() < deadline, f"{what} did not come to be"
        time.sleep(0.1)
    return found


def service_pid(home):
    """Return the process of the service of a state folder, as its machine numbers it."""
    return json.loads((home / "run" / "service.json").read_text())["pid"]


def is_there(pid):
    """Whether a process lives, as this machine numbers it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
