"""Recovery of damaged or deleted attempt records, by inspection of running processes.

Where: `LocalEngine`, before it works on an attempt. An agent's output goes to `agent.log` of its host's folder, and the
kernel shows the path behind a process's descriptor, even if the file has been deleted since: the path of `agent.log`
identifies the agent's host for certain. The agent's environment has the mark of all processes of the attempt.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

from clary.base.errors import EngineError
from clary.base.processes import ProcessId, exec_deadline, read_arguments, read_variable
from clary.control.engines.local import anchors, attempt_record, cleaning
from clary.control.engines.local.agent_processes import AGENT_LOG, MARK_VARIABLE
from clary.control.engines.local.attempt_record import RECORD_FILE, AttemptRecord
from clary.control.engines.local.network.network_spec import READY_FILE

DAMAGED_SUFFIX = ".damaged"
_DELETED = " (deleted)"  # the kernel appends this suffix to the path of a deleted file

log = logging.getLogger(__name__)


def mend(folder: Path) -> None:
    """Rebuild an attempt's record if it cannot be read or was deleted; keep the damaged file next to the new one.

    Raises: EngineError if it cannot be written, or if the machine refuses to read it at the moment.
    """
    path = folder / RECORD_FILE
    try:
        if attempt_record.read_record(folder) is not None or not _has_hosts(folder):
            return
        why = f"{path} was deleted"
    except EngineError as error:
        if error.retryable:
            raise
        why = error.message
        path.replace(path.with_name(path.name + DAMAGED_SUFFIX))
    log.warning("%s; it is made anew from what runs", why)
    attempt_record.write_record(folder, find(folder) or _empty())


def restore(folder: Path) -> bool:
    """Restore an attempt's deleted folder while its processes still run; return whether any process runs."""
    record = find(folder)
    anchor_pids = _anchors_of(folder)
    if record is None and not anchor_pids:
        return False
    log.warning("%s was deleted while its attempt ran; it is made again, to end what runs", folder)
    record = record or _empty()
    for host in record.agents:
        (folder / host).mkdir(parents=True, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    attempt_record.write_record(folder, record)
    for anchor in anchor_pids:
        ready = {"pid": anchor.pid, "started": anchor.started, "error": None}
        (folder / READY_FILE).write_text(json.dumps(ready), encoding="utf-8")
    return True


def find(folder: Path) -> AttemptRecord | None:
    """Return a new record of the agents whose logs lie in a folder, or None if no such agent runs."""
    agents: dict[str, ProcessId] = {}
    mark = ""
    deadline = exec_deadline()
    for name in os.listdir("/proc"):
        process = ProcessId.of(int(name)) if name.isdecimal() else None
        if process is None or "clary.agent" not in (command := read_arguments(process.pid, deadline)):
            continue
        host = command[command.index("--host") + 1] if "--host" in command[:-1] else ""
        if host and _output_of(process) == str(folder / host / AGENT_LOG):
            agents[host] = process
            mark = read_variable(process.pid, MARK_VARIABLE) or mark
    if not agents:
        return None
    places = cleaning.own_cgroup_places()
    return AttemptRecord(boot_id=attempt_record.boot_id(), mark=mark, agents=agents, cgroup_places=places)


def _has_hosts(folder: Path) -> bool:
    """Whether agents were started below an attempt's folder, so that it must have a record; a cheap check."""
    return next(folder.glob(f"*/{AGENT_LOG}"), None) is not None


def _empty() -> AttemptRecord:
    return AttemptRecord(boot_id=attempt_record.boot_id(), mark=os.urandom(16).hex())


def _output_of(process: ProcessId) -> str:
    try:
        return os.readlink(f"/proc/{process.pid}/fd/1").removesuffix(_DELETED)
    except OSError:
        return ""


def _anchors_of(folder: Path) -> list[ProcessId]:
    found = []
    deadline = exec_deadline()
    for name in os.listdir("/proc"):
        process = ProcessId.of(int(name)) if name.isdecimal() else None
        command = read_arguments(process.pid, deadline) if process is not None else []
        is_anchor = len(command) > 1 and command[-2] == anchors.ANCHOR_COMMAND[-1]
        if process is not None and is_anchor and Path(command[-1]).parent == folder:
            found.append(process)
    return found
