"""The host that stands by on a machine of a warm pool: its model, its place and its end.

Where: the agent of a pool keeps one of these from job to job. At the end of each attempt it has a host made like the
one that has just gone, with an interpreter ready in it; the next attempt's steps build `/opt/ml` in that host's folder
and start the program there, if it fits. If it does not, nothing is lost but the work ahead, and where hosts have mounts
nothing in this one has seen that `/opt/ml`.

    <pool folder>/HOST/places/N/   ml, and what the host has changed
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from clary.agent.environments.variables import POOL_CACHE_FOLDER
from clary.agent.host.leftovers import remove_tree
from clary.agent.host.program import Program
from clary.agent.host.sandbox import Bind, ProcessSpec, Sandbox
from clary.agent.host.standby import StandbyHost
from clary.agent.host.standby_policy import plan_standby
from clary.base.errors import AgentError
from clary.contract.launch_plan import Isolation, LaunchPlan
from clary.contract.limits.cgroup_names import host_cgroup_name

PLACES_FOLDER = "places"
_POOL_ATTEMPT = 1

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Example:
    """The program that the next one is expected to be like."""

    plan: LaunchPlan
    sandbox: Sandbox
    processes: tuple[ProcessSpec, ...]


class StandbyKeeper:
    """Keeps at most one host standing by; one attempt uses it at a time."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._lock = threading.Lock()  # `close` may come from the thread of a signal's handler
        self._standby: StandbyHost | None = None
        self._place: Path | None = None  # folder of `_standby`, or of the attempt that uses it
        self._example: _Example | None = None
        self._num_places = 0

    def folder_for(self, plan: LaunchPlan) -> Path | None:
        """Return the folder in which an attempt's host is to be built; None if no host stands by for its pool."""
        with self._lock:
            example = self._example
            if self._standby is None or example is None or example.plan.pool_folder != plan.pool_folder:
                return None
            return self._place

    def start(
        self,
        plan: LaunchPlan,
        sandbox: Sandbox,
        processes: Sequence[ProcessSpec],
        *,
        on_output: Callable[[int, bytes], None],
    ) -> Program:
        """Start a program: in the host that stands by if it is the one for it, else in one that is made now.

        Args:
            plan: the attempt; the next host that stands by is made like its own.
            sandbox: the host that the program needs.
            processes: as for `Program.start`.
            on_output: as for `Program.start`.
        Raises: AgentError as `Program.start`.
        """
        with self._lock:
            standby, self._standby = self._standby, None
            self._example = _Example(plan, sandbox, tuple(processes))
        if standby is None:
            return Program.start(processes, sandbox, on_output=on_output)
        # A program that the interpreter cannot become is of another make, and gets nothing of what the last one left.
        reasons = [standby.why_not(sandbox, processes), *map(standby.why_not_fork, processes)]
        if reason := next(filter(None, reasons), ""):
            logger.info("the host that stands by is not used: %s", reason)
            standby.close()
            return Program.start(processes, sandbox, on_output=on_output)
        return standby.start(processes, binds=standby.late_binds(sandbox), on_output=on_output)

    def prepare(self) -> None:
        """Put the last attempt's place away and have a host stand by like its own, where that can be had."""
        self.close()
        example = self._example
        if example is None or not example.plan.has_standby:
            return
        folder = Path(example.plan.pool_folder) / self._host
        if self._num_places == 0:
            remove_tree(str(folder / PLACES_FOLDER))  # of an agent that was killed
        self._num_places += 1
        place = folder / PLACES_FOLDER / str(self._num_places)
        late_roots = [path for path in (Path(example.plan.cache_folder), folder / POOL_CACHE_FOLDER) if path.is_dir()]
        # Plain processes see the tree where it lies.
        is_moved = example.sandbox.isolation is Isolation.PROCESSES
        moved = (example.sandbox.ml_folder, str(place / "ml")) if is_moved else None
        planned = plan_standby(example.processes, moved=moved)
        if planned is None:
            return
        try:
            (place / "ml").mkdir(parents=True)
            standby = StandbyHost.prepare(
                _sandbox_like(example, place),
                python=planned.python,
                environment=planned.environment,
                preload=planned.preload,
                late_roots=[str(path) for path in late_roots],
            )
        except (AgentError, OSError) as error:
            logger.warning("no host stands by: %s", error)
            remove_tree(str(place))
            return
        with self._lock:
            self._standby, self._place = standby, place

    def close(self) -> None:
        """Take the host that stands by away, and the place of an attempt that has ended; harmless when repeated."""
        with self._lock:
            standby, self._standby = self._standby, None
            place, self._place = self._place, None
        if standby is not None:
            standby.close()
        if place is not None:
            self._remove_later(place)

    def _remove_later(self, place: Path) -> None:
        """Rename a place and remove it in the background: removal may take long, and the service waits."""
        gone = place.with_name(f"gone-{place.name}")
        with contextlib.suppress(OSError):
            place.rename(gone)
            threading.Thread(target=remove_tree, args=(str(gone),), name="place-removal", daemon=True).start()


def _sandbox_like(example: _Example, place: Path) -> Sandbox:
    """Return the host to make: like the last one in all that does not belong to its job alone."""
    plan, sandbox = example.plan, example.sandbox
    return replace(
        sandbox,
        host_folder=str(place),
        ml_folder=str(place / "ml"),
        cgroup_name=host_cgroup_name(plan.pool, _POOL_ATTEMPT, host=sandbox.hostname, work_folder=plan.pool_folder),
        binds=tuple(bind for bind in sandbox.binds if _is_of_every_job(bind)),
    )


def _is_of_every_job(bind: Bind) -> bool:
    """Whether a bind shows an interpreter or this package, and nothing that a job has written or asked for."""
    return bind.source == bind.target
