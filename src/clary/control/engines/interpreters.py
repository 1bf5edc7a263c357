"""Modules that Python interpreters of this machine can import, found without importing them.

Where: it implements the `Probe` of `images`. An interpreter is queried once; the answer is cached until the interpreter
or its packages change.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from clary.base.errors import EngineError, Fault
from clary.base.hookless_python import hookless_command
from clary.base.limited_runs import RunTooLong, run_limited
from clary.control.engines.added_environments import added_environments

PROBE_TIMEOUT_S = 30.0
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"  # PyTorch's own index for pip; uv has a name for it

# Module of a framework -> distribution that provides the module's version.
DISTRIBUTIONS = {
    "torch": "torch",
    "tensorflow": "tensorflow",
    "tf_keras": "tf_keras",
    "mxnet": "mxnet",
    "transformers": "transformers",
    "xgboost": "xgboost",
    "sklearn": "scikit-learn",
    "autogluon": "autogluon",
}
# Variants of a distribution have different names: tensorflow-cpu, tensorflow-macos...
_PROBE_CODE = """
import importlib.metadata, importlib.util, json, sys

def version(module, distribution):
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        pass
    try:  # slow: reads every installed package
        return importlib.metadata.version(importlib.metadata.packages_distributions()[module][0])
    except (AttributeError, LookupError, importlib.metadata.PackageNotFoundError):
        return ""

asked = json.loads(sys.argv[1])
found = {"python": "%d.%d.%d" % sys.version_info[:3]}
found.update({name: version(name, asked[name]) for name in asked if importlib.util.find_spec(name) is not None})
print(json.dumps({"modules": found, "folders": [path for path in sys.path if path]}))
"""


class InterpreterProbe:
    """Runs interpreters to list their modules, and caches the answers.

    Args:
        environ: environment of the interpreters; PYTHONPATH and PYTHONHOME are left out, as for the programs of jobs.
        home: state folder with added environments; None for no added environments.
    """

    def __init__(self, environ: Mapping[str, str] | None = None, *, home: Path | None = None) -> None:
        self._home = home
        kept = os.environ if environ is None else environ
        self._environ = {name: value for name, value in kept.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
        self._answers: dict[str, tuple[tuple[tuple[str, int], ...], dict[str, str]]] = {}

    def candidates(self) -> Sequence[str]:
        """Return the interpreter that runs Clary, and `python3` of PATH."""
        found = shutil.which("python3", path=self._environ.get("PATH"))
        return tuple(dict.fromkeys([sys.executable, *([found] if found else [])]))

    def added(self) -> Mapping[str, str]:
        """Return name -> interpreter of the environments that `clary environments add` has made."""
        return {} if self._home is None else {one.name: one.python for one in added_environments(self._home)}

    def install_command(self, *packages: str) -> str:
        """Return the command that installs packages for the interpreter that runs Clary."""
        if not self._has_pip():
            return shlex.join([sys.executable, "-m", "uv", "pip", "install", "--python", sys.executable, *packages])
        return shlex.join([sys.executable, "-m", "pip", "install", *packages])

    def cpu_build_option(self) -> str:
        """Return the option of `install_command` that selects torch's build without CUDA."""
        return f"--index-url {TORCH_CPU_INDEX}" if self._has_pip() else "--torch-backend cpu"

    @staticmethod
    def _has_pip() -> bool:
        """Whether the interpreter that runs Clary has pip, which environments made by uv lack; Clary includes uv."""
        return importlib.util.find_spec("pip") is not None

    def modules(self, python: str) -> Mapping[str, str]:
        """Return module -> version of the frameworks of `DISTRIBUTIONS` that `python` can import; blocks.

        Raises: EngineError naming the interpreter, with its output.
        """
        known = self._answers.get(python)
        if known is not None and known[0] == _stamps(path for path, _ in known[0]):
            return known[1]
        answer = self._ask(python)
        self._answers[python] = (_stamps([python, *answer["folders"]]), answer["modules"])
        return self._answers[python][1]

    def _ask(self, python: str) -> dict[str, dict[str, str]]:
        try:
            command = hookless_command(python, _PROBE_CODE, json.dumps(DISTRIBUTIONS), isolated=False)
            done = run_limited(command, limit_s=PROBE_TIMEOUT_S, variables=self._environ, folder="/")
        except RunTooLong as error:
            raise EngineError(f"{python} did not answer within {PROBE_TIMEOUT_S:g} s", retryable=True) from error
        except OSError as error:
            raise EngineError(
                f"{python} cannot be run: {error.strerror}; correct the path in settings.toml", fault=Fault.USER
            ) from error
        try:
            return json.loads(done.output)  # type: ignore[no-any-return]
        except ValueError as error:
            said = done.errors.strip()[-500:]
            raise EngineError(
                f"{python} is not a working Python: it ended with exit code {done.code}: {said}", fault=Fault.USER
            ) from error


def _stamps(paths: Iterable[str]) -> tuple[tuple[str, int], ...]:
    """Return the modification times of an interpreter and its package folders: an installation changes one."""
    stamps = []
    for path in paths:
        try:
            stamps.append((path, Path(path).stat().st_mtime_ns))
        except OSError:
            stamps.append((path, 0))
    return tuple(stamps)
