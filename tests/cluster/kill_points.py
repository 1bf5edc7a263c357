"""Points of a launch at which a service kills itself, and helpers of the tests that set such a point.

Where: such services have `killed_services` on their PYTHONPATH; two test modules, one per engine, name points.
"""

import json
import time
from pathlib import Path

NUM_LINES = 12
PROGRAM = f"for i in $(seq {NUM_LINES}); do echo line $i of $(hostname); sleep 0.2; done"
# (step, before or after the step, number of the call), in the order of a launch. Each engine adds its own points
# between the two tables.
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
    """Return the path of the file that holds the kill point for the service of this state folder."""
    return home / "kill-point.json"


def service_variables(home):
    """Return the variables of a service that kills itself at the point in its file."""
    return {"PYTHONPATH": str(Path(__file__).parent / "killed_services"), "KILL_POINT_FILE": str(kill_point_of(home))}


def set_kill_point(home, point, job):
    """Write the point at which the service of a state folder kills itself.

    Args:
        home: state folder of the service.
        point: (step, "before" or "after", number of the call).
        job: name of the test's job, which makes the file's content unique.
    """
    what, when, call = point
    kill_point_of(home).write_text(json.dumps({"point": what, "when": when, "call": call, "job": job}))


def soon(look, *, within_s=30.0, what="it"):
    """Call `look` until its result is true; return the result."""
    deadline = time.monotonic() + within_s
    while not (found := look()):
        assert time.monotonic() < deadline, f"{what} did not come to be"
        time.sleep(0.1)
    return found


def service_pid(home):
    """Return the pid of the service of a state folder, in the service's own pid namespace."""
    return json.loads((home / "run" / "service.json").read_text())["pid"]


def is_there(pid):
    """Return whether a process with this pid of this machine lives."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
