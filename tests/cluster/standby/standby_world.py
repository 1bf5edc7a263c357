"""Standby hosts and programs for them, for tests."""

import contextlib
import uuid
from pathlib import Path

from host_world import DEADLINE_S, PATH, PYTHON, HostWorld, Listener, process

from clary.agent.host.sandbox import Bind
from clary.agent.host.standby import StandbyHost
from clary.agent.zygote.interpreter_start import RANK_SHIM

PRELOADED = "wave"  # imported by no program of these tests
IS_FORKED = f"import sys; print('forked' if {PRELOADED!r} in sys.modules else 'executed')\n"


class StandbyWorld(HostWorld):
    """Makes standby hosts, and programs for them."""

    def __init__(self, mode):
        super().__init__(mode)
        self._standbys = []

    def prepare(self, sandbox=None, *, preload=(PRELOADED,), late_roots=(), python=PYTHON, environment=None, ahead=1):
        sandbox = sandbox or self.sandbox()
        standby = StandbyHost.prepare(
            sandbox,
            python=python,
            environment=self.variables(sandbox) if environment is None else environment,
            preload=preload,
            late_roots=late_roots,
            num_ahead=ahead,
        )
        self._standbys.append(standby)
        return standby

    def sandbox_with(self, name, text, **fields):
        """Return a sandbox whose programs can import a module `name` that holds `text`."""
        folder = self.folder("modules")
        (folder / f"{name}.py").write_text(text)
        binds = () if self.mode == "plain" else (Bind(source=str(folder), target=str(folder)),)
        return self.sandbox(binds=binds, **fields)

    def code(self, sandbox):
        """Return the working folder of programs, as the programs see it."""
        return sandbox.ml_folder if self.mode == "plain" else "/opt/ml"

    def variables(self, sandbox, **more):
        shims = str(Path(RANK_SHIM).parent)
        python_path = f"{self.code(sandbox)}:{shims}:{self.base}/modules"
        return {"PATH": PATH, "LANG": "C.UTF-8", "PYTHONPATH": python_path, **more}

    def rank(self, sandbox, script, *arguments, rank=0, python=PYTHON, **variables):
        """Write `script` to the program's folder; return a process that runs it."""
        name = f"train-{uuid.uuid4().hex[:8]}.py" if script is not None else "train.py"
        if script is not None:
            (Path(sandbox.ml_folder) / name).write_text(script)
        return process(
            *(python, RANK_SHIM, name, *arguments),
            environment=self.variables(sandbox, **variables),
            working_folder=self.code(sandbox),
            rank=rank,
            local_rank=rank,
        )

    def start_in(self, standby, *processes, binds=()):
        listener = Listener()
        program = standby.start(processes, binds=binds, on_output=listener)
        self._programs.append(program)
        return program, listener

    def close(self):
        with contextlib.ExitStack() as left:  # closes every host, even if one close fails
            left.callback(super().close)
            for standby in self._standbys:
                left.callback(standby.close)


def finished(program, listener, *, index=0):
    """Wait until a program ends; return its exits and the output of one of its processes."""
    result = program.wait(DEADLINE_S)
    assert result is not None, f"still running; so far: {listener.text(index)}"
    program.close()
    return [(end.exit_code, end.signal) for end in result.exits], listener.text(index)
