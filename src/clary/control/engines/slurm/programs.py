"""Runs Slurm and munge programs, each with an argument list, a deadline and no secret in its environment.

Where: all modules of this package that talk to the cluster. Variables of the service that are meant for these programs
(SBATCH_PARTITION, SQUEUE_FORMAT) are not passed to them: only arguments control them.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass

from clary.base.errors import EngineError
from clary.base.limited_runs import OutputTooLong, RunTooLong, run_limited
from clary.control.limited_children import end_child, read_output

NEEDED = ("sbatch", "squeue", "sinfo", "scancel", "scontrol", "unmunge")
SYSTEM_FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
LIMIT_S = 20.0  # twice Slurm's MessageTimeout, which is 10 s by default
_HANDED_ON = ("HOME", "USER", "LOGNAME", "SLURM_CONF")
_MAX_WORDS = 400


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Exit code and output of a program."""

    code: int
    output: str
    errors: str

    @property
    def words(self) -> str:
        """The program's error text in one line."""
        text = self.errors.strip() or self.output.strip() or f"exit code {self.code}"
        return " ".join(text.split())[:_MAX_WORDS]


class SlurmPrograms:
    """The programs of one cluster.

    Args:
        environment: variables of the service; PATH names the folders of the programs, SLURM_CONF the cluster.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._path = environment.get("PATH", "") or ":".join(SYSTEM_FOLDERS)
        self._handed_on = {name: environment[name] for name in _HANDED_ON if environment.get(name)}

    def require(self) -> None:
        """Check that the programs exist. Raises: EngineError naming missing programs."""
        missing = [program for program in NEEDED if shutil.which(program, path=self._path) is None]
        if missing:
            raise EngineError(
                f"engine slurm needs {', '.join(missing)} in PATH, which is {self._path}. Run the service on a login "
                "node of the cluster, or install Slurm's client programs and munge here."
            )

    def has(self, program: str) -> bool:
        """Whether a program is in PATH."""
        return shutil.which(program, path=self._path) is not None

    async def run(self, program: str, *arguments: str, text: str = "", limit_s: float = LIMIT_S) -> Outcome:
        """Run a program to its end; any exit code is accepted.

        Args:
            program: name, looked up in PATH.
            arguments: its command-line arguments.
            text: its standard input.
            limit_s: seconds after which it is killed.
        Raises: EngineError, retryable, if it takes longer or cannot be started; EngineError if it is missing.
        """
        if text:
            # asyncio raises an error when it writes to a program that has ended without reading its input.
            return await asyncio.to_thread(self.run_now, program, *arguments, text=text, limit_s=limit_s)
        try:
            process = await asyncio.create_subprocess_exec(
                self._find(program),
                *arguments,
                env=self._environment(program),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            raise EngineError(f"{program} could not be started: {error}", retryable=True) from error
        try:
            async with asyncio.timeout(limit_s):
                output, errors = await read_output(process, program)
        except TimeoutError:
            raise EngineError(f"{program} gave no answer in {limit_s:g} s", retryable=True) from None
        except OutputTooLong as error:
            raise EngineError(str(error), retryable=True) from error
        finally:
            if process.returncode is None:
                await end_child(process)
        code = process.returncode
        assert code is not None, "read_output has waited for its end"
        return Outcome(code=code, output=output.decode(errors="replace"), errors=errors.decode(errors="replace"))

    def run_now(self, program: str, *arguments: str, text: str, limit_s: float) -> Outcome:
        """Run a program as `run` does, but block the calling thread until it ends.

        Args:
            program: name, looked up in PATH.
            arguments: its command-line arguments.
            text: its standard input.
            limit_s: seconds after which it is killed.
        Raises: as `run`.
        """
        try:
            done = run_limited(
                [self._find(program), *arguments],
                limit_s=limit_s,
                given=text.encode(),
                variables=self._environment(program),
            )
        except RunTooLong:
            raise EngineError(f"{program} gave no answer in {limit_s:g} s", retryable=True) from None
        except OutputTooLong as error:
            raise EngineError(str(error), retryable=True) from error
        except OSError as error:
            raise EngineError(f"{program} could not be started: {error}", retryable=True) from error
        return Outcome(code=done.code, output=done.output, errors=done.errors)

    def _find(self, program: str) -> str:
        path = shutil.which(program, path=self._path)
        if path is None:
            raise EngineError(f"{program} is not in PATH, which is {self._path}: install Slurm's client programs")
        return path

    def _environment(self, program: str) -> dict[str, str]:
        """Return the environment of a program; sbatch passes its environment on to the job."""
        own_folder = os.path.dirname(self._find(program))
        path = ":".join(dict.fromkeys((*SYSTEM_FOLDERS, own_folder)))
        found = {**self._handed_on, "PATH": path, "LC_ALL": "C.UTF-8"}
        if program == "sbatch":
            return found
        return {**found, "TZ": "UTC0"}  # the programs print times in the time zone of their environment
