"""Cut hosts off a running job's network and connect them again: for tests and rehearsals.

Run: `python -m clary.control.engines.local.network_faults FOLDER HOST up|down` does it; `partition` runs that, because
joining a namespace would change the calling process. A host that is cut off keeps its interface, address and carrier:
what it sends simply never arrives.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from clary.contract.errors import EngineError
from clary.contract.launch_plan import Isolation, LaunchPlan
from clary.control.engines.local import fabric, namespaces, network_building
from clary.control.engines.local.agent_processes import clary_folder
from clary.control.engines.local.attempt_record import read_ready
from clary.control.engines.local.netlink import Netlink
from clary.control.engines.local.network_spec import write_json

TIMEOUT_S = 10.0


async def partition(plan: LaunchPlan, host: str, *, up: bool) -> None:
    """Cut `host` off its job's network (`up=False`) or connect it again; already so is fine.

    Raises: EngineError if the job has no network of its own, no such host, or its anchor is gone.
    """
    if plan.isolation is not Isolation.NAMESPACES:
        raise EngineError(f"job {plan.job_name} runs as plain processes: it has no network that could be cut")
    arguments = (plan.work_folder, host, "up" if up else "down")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-S",
        "-m",
        __name__,
        *arguments,
        env={"PYTHONPATH": clary_folder()},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(TIMEOUT_S):
            output, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise EngineError(f"job {plan.job_name}: partition of {host} took longer than {TIMEOUT_S:g} s") from None
    if process.returncode != 0:
        said = output.decode(errors="replace").strip().rpartition("\n")[2]
        raise EngineError(f"job {plan.job_name}: could not set {host} {arguments[2]}: {said}")


def main(arguments: list[str]) -> int:
    """Carry out what `partition` asked for."""
    folder, host, direction = arguments
    try:
        _set_connection(Path(folder), host, up=direction == "up")
    except (OSError, EngineError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _set_connection(folder: Path, host: str, *, up: bool) -> None:
    ready = read_ready(folder)
    if ready is None or not ready.anchor.is_alive():
        raise EngineError(f"{folder}: the job has no network, or its anchor is gone")
    names = list(ready.namespaces)
    if host not in names:
        raise EngineError(f"the job has no host {host!r}; it has {', '.join(names)}")
    if ready.is_switched_by_us:
        _change_partitions(str(folder / fabric.PARTITIONS_FILE), host, up=up)
        return
    if ready.has_user_namespace:
        _join(f"/proc/{ready.pid}/ns/user", namespaces.CLONE_NEWUSER)
    _join(f"/proc/{ready.pid}/fd/{ready.switch}", namespaces.CLONE_NEWNET)
    with Netlink() as switch:
        switch.set_master(network_building.port_name(names.index(host)), bridge=network_building.BRIDGE if up else None)


def _change_partitions(path: str, host: str, *, up: bool) -> None:
    """Change the list that the TAP switch looks at twenty times a second."""
    try:
        with open(path, encoding="utf-8") as file:
            cut = set(json.load(file))
    except FileNotFoundError:
        cut = set()
    cut.difference_update([host]) if up else cut.add(host)
    write_json(path, sorted(cut))


def _join(path: str, kind: int) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        namespaces.setns(descriptor, kind)
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
