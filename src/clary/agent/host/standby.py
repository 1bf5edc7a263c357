"""A host created before its program is known, with a ready interpreter in it.

Where: the agent of a pool prepares a standby host at the end of each job, and in a series of similar jobs also while a
program runs, and starts the next program in it. The slow steps are then done: namespaces, root, interpreter, imports. A
standby host serves one program, unless it lasts: then, after its program has ended, `on_free` of `start` receives it
for the next program.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
from collections.abc import Callable, Mapping, Sequence

from clary.agent.host import standby_policy
from clary.agent.host.first_process import FirstProcess
from clary.agent.host.program import NothingHasRunError, Program
from clary.agent.host.sandbox import Bind, ProcessSpec, Sandbox
from clary.agent.zygote.interpreter_start import RANK_SHIM, ZYGOTE, start_variables, why_not_fork
from clary.base.clock import Clock
from clary.base.errors import AgentError
from clary.contract.launch_plan import Isolation
from clary.contract.ml_tree import OPT_ML


class ReadyProgram:
    """A program in a standby host that has not run any code of its own; `begin` or `close` ends this state.

    Args:
        program: the program; None if the host could not take it.
        start_anew: starts the same processes in a new host.
    """

    def __init__(self, program: Program | None, start_anew: Callable[[], Program]) -> None:
        self._program = program
        self._start_anew = start_anew

    def begin(self) -> Program:
        """Let every process begin; if the standby host fails before any process runs, start them in a new host.

        Raises:
            AgentError: no host could be made, or the host failed after the first process ran; it was removed.
        """
        if self._program is not None:
            with contextlib.suppress(
                NothingHasRunError
            ):  # a new host would fail in the same way, or it does not matter
                self._program.begin()
                return self._program
        return self._start_anew()

    def close(self) -> None:
        """End the program without any effect and remove its host."""
        if self._program is not None:
            self._program.close()


class StandbyHost:
    """A standby host; `prepare` creates it, `make_ready` or `start` consumes it, `close` removes an unused one.

    Methods may be called from any thread.
    """

    def __init__(
        self, sandbox: Sandbox, *, python: str, environment: Mapping[str, str], late_roots: Sequence[str], lasts: bool
    ) -> None:
        self._sandbox = sandbox
        self.lasts = lasts and sandbox.isolation is Isolation.NAMESPACES
        self._python = python
        self._start_variables = start_variables(environment)
        self._has_mounts = has_mounts = sandbox.isolation is Isolation.NAMESPACES
        self._late_folder = str(OPT_ML) if has_mounts else sandbox.ml_folder  # path in the interpreter's view
        self._late_roots = tuple(os.path.realpath(folder) for folder in late_roots) if has_mounts else ()
        self._using = threading.Lock()
        self._first_process: FirstProcess | None = None  # None before `prepare` and after `start`

    @classmethod
    def prepare(
        cls,
        sandbox: Sandbox,
        *,
        python: str,
        environment: Mapping[str, str],
        preload: Sequence[str] = ("torch",),
        late_roots: Sequence[str] = (),
        lasts: bool = False,
        num_ahead: int = 0,
    ) -> StandbyHost:
        """Start the creation of the host and return; `start` waits for its completion.

        Args:
            sandbox: the host; `host_folder` and `ml_folder` exist and are empty. The agent writes the program's files
                below /opt/ml into `ml_folder` later. A host with mounts shows them only once it gets its program
                (`start` or `make_ready`); until then `hidden_folders` cover them.
            python: path of the environment's interpreter in the program's view.
            environment: variables of a typical process; only variables that an interpreter reads at its start are used.
            preload: modules to import; modules that the environment lacks are skipped.
            late_roots: existing folders that may contain sources of late binds.
            lasts: whether the host serves several programs of one owner in succession, until one leaves a trace;
                ignored for plain processes. Then `ml_folder` must lie below `host_folder`.
            num_ahead: ranks to fork before the program is known; a host that lasts forks none.

        Raises:
            AgentError: a folder is missing or the cgroup is in use; the host was removed.
        """
        standby = cls(sandbox, python=python, environment=environment, late_roots=late_roots, lasts=lasts)
        first_process = FirstProcess(sandbox)
        ahead = 0 if standby.lasts else num_ahead
        try:
            first_process.launch(
                (),
                output_fds=(),
                standby={
                    "argv": [python, ZYGOTE, standby._late_folder, RANK_SHIM, str(ahead), *preload],
                    "environment": standby._start_variables,
                    "lasts": standby.lasts,
                },
                late_roots=(standby._own_root, *standby._late_roots) if standby._has_mounts else (),
            )
        except BaseException:
            first_process.end()
            first_process.clean_up()
            raise
        standby._first_process = first_process
        return standby

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox of the host."""
        return self._sandbox

    @property
    def _own_root(self) -> str:
        """The late root with the program's /opt/ml; each program of a lasting host has another folder in it."""
        return self._sandbox.host_folder if self.lasts else self._sandbox.ml_folder

    def why_not(self, sandbox: Sandbox, processes: Sequence[ProcessSpec]) -> str:
        """Return "", or the reason why the host cannot run `processes` in `sandbox`.

        Processes that cannot be forked from the interpreter are no reason: they are executed, as in `Program.start`.
        """
        first_process = self._first_process
        if first_process is None:
            return "it has been used or closed"
        if first_process.has_ended:
            return f"its first process has ended: {first_process.why_ended() or 'it said nothing'}"
        return standby_policy.why_not_run(
            self._sandbox, self._with_real_sources(sandbox), processes, late_roots=self._late_roots
        )

    def why_not_fork(self, process: ProcessSpec) -> str:
        """Return "", or the reason why `process` cannot be forked from the interpreter."""
        return why_not_fork(process.argv, process.environment, python=self._python, start=self._start_variables)

    def late_binds(self, sandbox: Sandbox) -> tuple[Bind, ...]:
        """Return the binds of `sandbox` that the host still lacks, for `start`."""
        return standby_policy.late_binds(self._sandbox, sandbox)

    def start(
        self,
        processes: Sequence[ProcessSpec],
        *,
        binds: Sequence[Bind] = (),
        on_output: Callable[[int, bytes], None],
        clock: Clock | None = None,
        on_free: Callable[[StandbyHost | None, str], None] | None = None,
    ) -> Program:
        """Start every process, as `make_ready` and `begin` do; this consumes the standby host.

        Args: as `make_ready`.
        Raises: AgentError as they do.
        """
        ready = self.make_ready(processes, binds=binds, waits=False, on_output=on_output, clock=clock, on_free=on_free)
        return ready.begin()

    def make_ready(
        self,
        processes: Sequence[ProcessSpec],
        *,
        binds: Sequence[Bind] = (),
        waits: bool,
        on_output: Callable[[int, bytes], None],
        clock: Clock | None = None,
        on_free: Callable[[StandbyHost | None, str], None] | None = None,
    ) -> ReadyProgram:
        """Start every process, up to its first own code; this consumes the standby host.

        Args:
            processes: at least one process.
            binds: the host's late binds.
            waits: whether the processes wait for `ReadyProgram.begin`, with the small share of processors of a standby
                host; if not, they go on at once.
            on_output: as for `Program.start`.
            clock: as for `Program.start`.
            on_free: called when the program is closed, if the host lasts. The arguments are either the host, which
                stands by again once its `ml_folder` is a new, empty folder, and "", or None and the reason why the host
                has ended.

        Raises:
            AgentError: the host was used or closed already.
        """
        wanted = dataclasses.replace(self._sandbox, binds=(*self._sandbox.binds, *binds))
        reason = self.why_not(wanted, processes)
        first_process = self._take()
        if first_process is None:
            raise AgentError(f"host {self._sandbox.hostname} is no longer a standby host: {reason}")
        program = None
        if reason:
            _remove(first_process)
        else:
            program = Program.make_ready_in(
                first_process,
                processes,
                self._sandbox,
                forks=[not self.why_not_fork(process) for process in processes],
                binds=(*self._own_binds(), *self._with_real_sources(wanted).binds[len(self._sandbox.binds) :]),
                waits=waits,
                on_output=on_output,
                clock=clock,
                on_free=None if on_free is None or not self.lasts else self._hand_back(on_free),
            )
        return ReadyProgram(program, lambda: Program.start(processes, wanted, on_output=on_output, clock=clock))

    def close(self) -> None:
        """Remove an unused host: no process, mount, cgroup or folder is left. A second call does nothing."""
        first_process = self._take()
        if first_process is not None:
            _remove(first_process)

    def _hand_back(self, on_free: Callable[[StandbyHost | None, str], None]) -> Callable[[FirstProcess, str], None]:
        def take_back(first_process: FirstProcess, why_not: str) -> None:
            if why_not:
                on_free(None, why_not)
                return
            first_process.serve_another()
            with self._using:
                self._first_process = first_process
            on_free(self, "")

        return take_back

    @property
    def scratch_folder(self) -> str:
        """The host's scratch folder in `host_folder`; empty after `start`."""
        first_process = self._first_process
        return "" if first_process is None else first_process.scratch_folder

    def _take(self) -> FirstProcess | None:
        with self._using:
            first_process, self._first_process = self._first_process, None
        return first_process

    def _own_binds(self) -> tuple[Bind, ...]:
        """Return the late binds of every program of a standby host."""
        if not self._has_mounts:
            return ()
        return (Bind(source=os.path.realpath(self._sandbox.ml_folder), target=str(OPT_ML)),)

    def _with_real_sources(self, sandbox: Sandbox) -> Sandbox:
        """Return `sandbox` with canonical sources of late binds, because links would be resolved inside the host."""
        binds = tuple(
            bind if bind in self._sandbox.binds else dataclasses.replace(bind, source=os.path.realpath(bind.source))
            for bind in sandbox.binds
        )
        return dataclasses.replace(sandbox, binds=binds)


def _remove(first_process: FirstProcess) -> None:
    first_process.end()
    first_process.clean_up()
