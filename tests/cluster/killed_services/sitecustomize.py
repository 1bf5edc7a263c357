"""Kills the service at a named point of a launch; the service has this folder on its PYTHONPATH.

The file that KILL_POINT_FILE names holds a point as JSON, {"point": "sbatch", "when": "after", "call": 1}. The service
removes the file and kills itself with SIGKILL just before or after that call of the step named by the point. Calls are
counted from the time at which the file was written. Without the file the service runs as usual.
"""

import functools
import json
import os
import signal
import sys
import threading

_FILE = os.environ.get("KILL_POINT_FILE", "")
_counts = {}
_lock = threading.Lock()


def _strike(point, when):
    try:
        with open(_FILE, encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError:
        return
    wanted = json.loads(text)
    if (wanted["point"], wanted["when"]) != (point, when):
        return
    with _lock:
        _counts[text] = _counts.get(text, 0) + 1
        if _counts[text] == wanted["call"]:
            os.unlink(_FILE)
            os.kill(os.getpid(), signal.SIGKILL)


def _around(owner, name, point_of):
    """Wrap a coroutine method so that a kill can happen before or after it; `point_of` names the point of a call."""
    original = getattr(owner, name)

    @functools.wraps(original)
    async def struck(*arguments, **named):
        point = point_of(*arguments, **named)
        _strike(point, "before")
        answer = await original(*arguments, **named)
        _strike(point_of(*arguments, **named, answer=answer), "after")
        return answer

    setattr(owner, name, struck)


def _point_of_event(_, name, event, *, answer=None):
    phase = f" {event.report.facts.phase.value}" if hasattr(event, "report") else ""
    return f"{type(event).__name__}{phase}"


def _point_of_grant(*_, answer=None, **__):
    return "grant" if answer is None else "granted" if answer.is_granted else "not granted"


def _install():
    from clary.control.engines.boxes.ledger import BoxLedger
    from clary.control.engines.cluster.cluster_engine import ClusterEngine
    from clary.control.engines.cluster.enrolments import Enrolments
    from clary.control.engines.slurm.programs import SlurmPrograms
    from clary.control.reconcile.gateways.agent_gateway import AgentGateway
    from clary.control.reconcile.hub import JobHub

    _around(JobHub, "apply", _point_of_event)
    _around(SlurmPrograms, "run", lambda _, program, *__, **___: program)
    _around(BoxLedger, "put_allocation", lambda *_, **__: "put_allocation")
    _around(ClusterEngine, "grant", _point_of_grant)
    _around(ClusterEngine, "launch", lambda *_, **__: "launch")
    _around(ClusterEngine, "start_agents", lambda *_, **__: "start_agents")
    _around(Enrolments, "enrol", lambda *_, **__: "enrol")
    _around(Enrolments, "_keep", lambda *_, **__: "enrolled")
    _around(AgentGateway, "report", lambda *_, **__: "report")


if _FILE and "clary.control.server" in sys.orig_argv:
    _install()
