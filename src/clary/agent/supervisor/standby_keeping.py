"""The standby host on a machine of a warm pool: how it is made, its folder, and when it ends.

Where: the agent of a pool keeps one `StandbyKeeper` from job to job. At the end of each attempt, or while it runs, it
makes a host like the attempt's own, with an interpreter ready in it; the next attempt's steps build `/opt/ml` in that
host's folder and start the program there, if it fits. If the program does not fit, only the preparation is lost; where
hosts have mounts, no process in the standby host has seen that `/opt/ml`.

    <pool folder>/HOST/places/N/   ml, and the host's changes

Where a similar next job is certain, the host lasts: trials of a tuning job follow each other in it, their
ranks forked from one interpreter, as long as no trial leaves a trace. After a trial that leaves a trace, each trial
gets a host of its own, like other jobs.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from clary.agent.environments.config_files import make_folders
from clary.agent.environments.train_library import write_train_library
from clary.agent.environments.variables import POOL_CACHE_FOLDER
from clary.agent.host.leftovers import remove_tree
from clary.agent.host.program import Program
from clary.agent.host.sandbox import Bind, ProcessSpec, Sandbox
from clary.agent.host.standby import ReadyProgram, StandbyHost
from clary.agent.host.standby_policy import plan_standby
from clary.base.errors import AgentError
from clary.contract.launch_plan import Isolation, LaunchPlan
from clary.contract.limits.cgroup_names import host_cgroup_name, next_cgroup_name
from clary.contract.ml_tree import MlTree

PLACES_FOLDER = "places"
_POOL_ATTEMPT = 1
_MAKING_LIMIT_S = 10.0  # for the start of a host's first process, which takes 0.1 s

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Example:
    """The program that the next program is expected to resemble."""

    plan: LaunchPlan
    sandbox: Sandbox
    processes: tuple[ProcessSpec, ...]


@dataclass(frozen=True)
class _Ready:
    """A standby host, and its folder."""

    host: StandbyHost
    place: Path


@dataclass(frozen=True)
class _Waiting:
    """A program that is ready in its host and waits for `start`."""

    program: ReadyProgram
    sandbox: Sandbox
    processes: tuple[ProcessSpec, ...]


class StandbyKeeper:
    """Keeps at most one host standing by, and the folder of the attempt in progress.

    The next host is made at the end of an attempt. If the plan says that another job is certain, it is made as soon as
    the present program has started, except while that program runs in a host that lasts.

    Args:
        host: name.
    """

    def __init__(self, host: str) -> None:
        self._host = host
        self._lock = threading.Lock()  # a signal handler may call `close` from another thread
        self._ready: _Ready | None = None
        self._is_promised = False  # whether an attempt builds its tree in the folder of `_ready`
        self._used_place: Path | None = None  # folder of the attempt in progress
        self._waiting: _Waiting | None = None  # in `_used_place`
        self._free: StandbyHost | None = None  # in `_used_place`: its program has ended, and it serves the next one
        self._leaves_traces = False  # whether a program has left traces in its host, so that later programs may, too
        self._example: _Example | None = None
        self._num_places = 0
        self._making: threading.Thread | None = None
        self._num_closings = 0  # a host that is made during `close` is removed

    def folder_for(self, plan: LaunchPlan) -> Path | None:
        """Return the folder in which an attempt's host is to be built; None if its pool has no standby host."""
        with self._lock:
            ready, example = self._ready, self._example
            if ready is None or example is None or example.plan.pool_folder != plan.pool_folder:
                return None
            if self._serves_other_series(plan):
                return None
            self._is_promised = True
            return ready.place

    def make_ready(
        self,
        plan: LaunchPlan,
        sandbox: Sandbox,
        processes: Sequence[ProcessSpec],
        *,
        on_output: Callable[[int, bytes], None],
    ) -> None:
        """Let the processes of a program wait in the standby host until `start` is called for the same program.

        They wait at their gate, before the first line of their script. Nothing is done if the program does not fit the
        host, or if the host lasts: an unused program would count as one that leaves traces.

        Args: as `start`.
        """
        with self._lock:
            ready = self._ready
            if ready is None or not self._is_promised or ready.host.lasts or plan.series:
                return
            if any((ready.host.why_not(sandbox, processes), *map(ready.host.why_not_fork, processes))):
                return
            self._ready, self._is_promised, self._used_place = None, False, ready.place
            binds = ready.host.late_binds(sandbox)
            program = ready.host.make_ready(processes, binds=binds, waits=True, on_output=on_output)
            self._waiting = _Waiting(program, sandbox, tuple(processes))

    def start(
        self,
        plan: LaunchPlan,
        sandbox: Sandbox,
        processes: Sequence[ProcessSpec],
        *,
        on_output: Callable[[int, bytes], None],
    ) -> Program:
        """Start a program: in the standby host if the program waits there or fits it, else in a new host.

        Args:
            plan: the attempt; the next standby host is made like the attempt's own.
            sandbox: the host that the program needs.
            processes: as for `Program.start`.
            on_output: as for `Program.start`.
        Raises: AgentError as `Program.start`.
        """
        with self._lock:
            ready, self._ready = (self._ready, None) if self._is_promised else (None, self._ready)
            self._is_promised = False
            strange: _Ready | None = None
            if ready is not None:
                self._used_place = ready.place
            elif self._ready is not None and self._serves_other_series(plan):
                strange, self._ready = self._ready, None
            self._example = _Example(plan, sandbox, tuple(processes))
            waiting, self._waiting = self._waiting, None
        self._remove(strange, None)
        if waiting is not None:
            if (waiting.sandbox, waiting.processes) == (sandbox, tuple(processes)):
                return waiting.program.begin()
            waiting.program.close()
        program = self._start(ready.host if ready is not None else None, sandbox, processes, on_output)
        if plan.series and not program.may_be_followed:
            self._making = threading.Thread(target=self._make, name="standby-making", daemon=True)
            self._making.start()
        return program

    def prepare(self) -> None:
        """Remove the last attempt's folders and start a standby host like its own, if the isolation allows one."""
        if self._making is not None:
            self._making.join(_MAKING_LIMIT_S)
        with self._lock:
            # An attempt that was given up before its program started has left files in the folder of `_ready`.
            spoiled, self._ready = (self._ready, None) if self._is_promised else (None, self._ready)
            self._is_promised = False
            place, self._used_place = self._used_place, None
            free, self._free = self._free, None
            waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.program.close()
        if free is not None and place is not None and spoiled is None and self._tidy(place, free):
            with self._lock:
                is_wanted = self._ready is None and self._num_closings == 0
                if is_wanted:
                    self._ready = _Ready(free, place)
            if is_wanted:
                return
        if free is not None:
            free.close()
        self._remove(spoiled, place)
        self._make()

    def close(self) -> None:
        """Remove the standby host, and the folder of an attempt that has ended; harmless when repeated."""
        with self._lock:
            self._num_closings += 1
            ready, self._ready = self._ready, None
            place, self._used_place = self._used_place, None
            free, self._free = self._free, None
            waiting, self._waiting = self._waiting, None
            self._is_promised = False
        if waiting is not None:
            waiting.program.close()
        if free is not None:
            free.close()
        self._remove(ready, place)

    def _start(
        self,
        standby: StandbyHost | None,
        sandbox: Sandbox,
        processes: Sequence[ProcessSpec],
        on_output: Callable[[int, bytes], None],
    ) -> Program:
        if standby is None:
            return Program.start(processes, sandbox, on_output=on_output)
        # A program that the interpreter cannot run is of another kind, and gets a new host without traces of the last
        # program.
        reasons = [standby.why_not(sandbox, processes), *map(standby.why_not_fork, processes)]
        if reason := next(filter(None, reasons), ""):
            logger.info("the standby host is not used: %s", reason)
            standby.close()
            return Program.start(processes, sandbox, on_output=on_output)
        return standby.start(processes, binds=standby.late_binds(sandbox), on_output=on_output, on_free=self._take_back)

    def _take_back(self, host: StandbyHost | None, why_not: str) -> None:
        """Keep a lasting host when its program ends; `prepare` removes the program's files from its folder."""
        with self._lock:
            self._free = host
            if host is None:
                self._leaves_traces = True
        if host is None:
            logger.info("the host serves no other program: %s", why_not)

    def _serves_other_series(self, plan: LaunchPlan) -> bool:
        """Whether the standby host has served the programs of another series. The caller holds the lock."""
        ready, example = self._ready, self._example
        return ready is not None and example is not None and ready.host.lasts and example.plan.series != plan.series

    def _tidy(self, place: Path, host: StandbyHost) -> bool:
        """Remove the last attempt's files from a folder, except the host's own files; return whether that succeeded."""
        self._num_places += 1
        gone = place.with_name(f"gone-{self._num_places}")
        try:
            gone.mkdir()
            for name in os.listdir(place):
                if name != os.path.basename(host.scratch_folder):
                    (place / name).rename(gone / name)
            (place / "ml").mkdir()
        except OSError as error:
            logger.warning("a place could not be tidied: %s", error)
            return False
        _begin_tree(place)
        threading.Thread(target=remove_tree, args=(str(gone),), name="place-removal", daemon=True).start()
        return True

    def _make(self) -> None:
        """Make a standby host like the last attempt's; do nothing if one exists or the plan forbids it."""
        with self._lock:
            example, is_there, closings = self._example, self._ready is not None, self._num_closings
            if is_there or example is None or not example.plan.has_standby:
                return
            self._num_places += 1
            number = self._num_places
        folder = Path(example.plan.pool_folder) / self._host
        if number == 1:
            remove_tree(str(folder / PLACES_FOLDER))  # left by an agent that was killed
        place = folder / PLACES_FOLDER / str(number)
        late_roots = [path for path in (Path(example.plan.cache_folder), folder / POOL_CACHE_FOLDER) if path.is_dir()]
        # Processes without isolation see the tree at its real path.
        is_moved = example.sandbox.isolation is Isolation.PROCESSES
        moved = (example.sandbox.ml_folder, str(place / "ml")) if is_moved else None
        planned = plan_standby(example.processes, moved=moved)
        if planned is None:
            return
        try:
            (place / "ml").mkdir(parents=True)
            standby = StandbyHost.prepare(
                _sandbox_like(example, place, number),
                python=planned.python,
                environment=planned.environment,
                preload=planned.preload,
                num_ahead=planned.num_ahead,
                late_roots=[str(path) for path in late_roots],
                lasts=bool(example.plan.series) and not self._leaves_traces,
            )
        except (AgentError, OSError) as error:
            logger.warning("no standby host was made: %s", error)
            remove_tree(str(place))
            return
        _begin_tree(place)
        made = _Ready(standby, place)
        with self._lock:
            is_wanted = self._ready is None and closings == self._num_closings
            if is_wanted:
                self._ready = made
        if not is_wanted:
            self._remove(made, None)

    def _remove(self, ready: _Ready | None, place: Path | None) -> None:
        if ready is not None:
            ready.host.close()
            _remove_later(ready.place)
        if place is not None:
            _remove_later(place)


def _begin_tree(place: Path) -> None:
    """Write the parts of `/opt/ml` that every job has, so that the next job need not wait for them."""
    tree = MlTree(place / "ml")
    with contextlib.suppress(OSError):  # the next attempt makes what is missing, or reports why it cannot
        make_folders(tree)
        write_train_library(tree)


def _remove_later(place: Path) -> None:
    """Rename a folder and remove it in the background: removal may take long, and the service waits."""
    gone = place.with_name(f"gone-{place.name}")
    with contextlib.suppress(OSError):
        place.rename(gone)
        threading.Thread(target=remove_tree, args=(str(gone),), name="place-removal", daemon=True).start()


def _sandbox_like(example: _Example, place: Path, number: int) -> Sandbox:
    """Return the host to make: like the last one, without the parts that belong to its job alone.

    The previous host may still run, so hosts use two cgroups in turn.
    """
    plan, sandbox = example.plan, example.sandbox
    cgroup = host_cgroup_name(plan.pool, _POOL_ATTEMPT, host=sandbox.hostname, work_folder=plan.pool_folder)
    return replace(
        sandbox,
        host_folder=str(place),
        ml_folder=str(place / "ml"),
        cgroup_name=cgroup if number % 2 else next_cgroup_name(cgroup),
        binds=tuple(bind for bind in sandbox.binds if _is_of_every_job(bind)),
    )


def _is_of_every_job(bind: Bind) -> bool:
    """Whether a bind shows an interpreter or this package, not a file that a job has written or requested."""
    return bind.source == bind.target
