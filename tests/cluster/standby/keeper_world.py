"""A pool's host whose attempts are small programs, for tests of its standby hosts."""

import contextlib
import dataclasses
import time

from host_world import DEADLINE_S, PACKAGE_FOLDER, PATH, PYTHON, HostWorld, Listener, eventually, process

from clary.agent.supervisor.standby_keeping import PLACES_FOLDER, StandbyKeeper
from clary.agent.zygote.interpreter_start import RANK_SHIM
from clary.testing.launch_plans import make_plan

HOST = "algo-1"
SERIES = "arn:aws:sagemaker:us-east-1:111122223333:hyper-parameter-tuning-job/tune"
WAITS = "import sys, time; print('runs', flush=True); time.sleep(60)"
LEAVES = "open('left', 'w').close(); print('ended')"


class KeeperWorld(HostWorld):
    """One host of a pool, whose attempts are one-line programs."""

    def __init__(self, mode):
        super().__init__(mode)
        self.pool = self.folder("pool")
        self.folder(f"pool/{HOST}")
        self.keeper = StandbyKeeper(HOST)
        self._example = self.sandbox(HOST)

    def plan(self, **changes):
        return make_plan(
            pool="pool-1", pool_folder=str(self.pool), cache_folder="", shares_hosts=True, **{"hosts": (), **changes}
        )

    def attempt(self, plan, script, *, is_ready=False, changes=None):
        """Start the program of an attempt as an agent does; return it with its output and its folder.

        Args:
            is_ready: whether its processes wait in the standby host first.
            changes: variables of the started program that the waiting one did not have.
        """
        place = self.keeper.folder_for(plan)
        folder = place or self.folder(f"attempt-{time.monotonic_ns()}")
        sandbox, rank = self.program_in(folder, script)
        listener = Listener()
        if is_ready:
            self.keeper.make_ready(plan, sandbox, (rank,), on_output=listener)
        if changes:
            rank = dataclasses.replace(rank, environment={**rank.environment, **changes})
        program = self.keeper.start(plan, sandbox, (rank,), on_output=listener)
        self._programs.append(program)
        return program, listener, folder

    def program_in(self, folder, script):
        """Write a program into the folder of an attempt; return its sandbox and its process."""
        ml_folder = folder / "ml"
        ml_folder.mkdir(exist_ok=True)
        sandbox = dataclasses.replace(self._example, host_folder=str(folder), ml_folder=str(ml_folder))
        code = str(ml_folder) if self.mode == "plain" else "/opt/ml"
        (ml_folder / "train.py").write_text(script)
        rank = process(
            *(PYTHON, RANK_SHIM, "train.py"),
            environment={"PATH": PATH, "PYTHONPATH": f"{code}:{PACKAGE_FOLDER}"},
            working_folder=code,
        )
        return sandbox, rank

    def ready_place(self):
        """Return the folder of the standby host, or None."""
        ready = self.keeper._ready
        return ready.place if ready is not None else None

    def close(self):
        with contextlib.ExitStack() as left:
            left.callback(super().close)
            left.callback(eventually, lambda: not any((self.pool / HOST).glob(f"{PLACES_FOLDER}/*")))
            left.callback(self.keeper.close)


def finish(program, listener):
    """Wait until a program ends."""
    result = program.wait(DEADLINE_S)
    assert result is not None, listener.text()
    program.close()
