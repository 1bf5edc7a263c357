"""Facts and packages of a Python environment, queried from its own interpreter.

Where: `requirement_files` hashes these facts, `clone` copies the listed folders. Python from 3.8 on is supported.
"""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from pathlib import Path

from clary.base.errors import AgentError
from clary.base.hookless_python import hookless_command
from clary.base.limited_runs import RunTooLong, run_limited

_PROBE_TIMEOUT_S = 120.0  # enough for a cold disk under load; with a warm cache the query takes 0.1 s

# Runs in isolated mode: no PYTHON* variables, no user site, no current folder, no hooks of packages.
_PROBE = """
import importlib.metadata, json, os, site, sys, sysconfig
folders = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()]
scripts = os.path.realpath(sysconfig.get_path("scripts"))
distributions, files = [], []
for distribution in importlib.metadata.distributions():
    distributions.append("%s==%s" % (distribution.metadata["Name"], distribution.version))
    for file in distribution.files or ():
        if ".." in file.parts:
            path = os.path.realpath(str(distribution.locate_file(file)))
            if os.path.dirname(path) == scripts:
                files.append(path)
print(json.dumps({
    "version": "%d.%d.%d" % sys.version_info[:3],
    "prefix": sys.prefix,
    "is_virtual": sys.prefix != sys.base_prefix,
    "base_python": getattr(sys, "_base_executable", None) or sys.executable,
    "site_folders": [f for f in dict.fromkeys(folders) if os.path.isdir(f)],
    "scripts_folder": sysconfig.get_path("scripts"),
    "script_files": sorted(set(files)),
    "distributions": sorted(distributions),
}))
"""


@dataclass(frozen=True, kw_only=True)
class InterpreterFacts:
    """Facts of one environment."""

    python: str  # path as the caller gave it
    version: str  # 3.11.7
    prefix: str
    is_virtual: bool  # created by venv; its base interpreter lies elsewhere
    base_python: str
    site_folders: tuple[str, ...]  # folders of packages, the environment's own first
    scripts_folder: str
    script_files: tuple[str, ...]  # programs that packages installed
    distributions: tuple[str, ...]  # name==version, sorted

    @property
    def library_folder(self) -> str:
        """Folder of packages in an environment of this version, relative to its root."""
        major, minor, _ = self.version.split(".")
        return f"lib/python{major}.{minor}/site-packages"


def inspect_interpreter(python: str) -> InterpreterFacts:
    """Ask `python` about its environment.

    Raises: AgentError if it cannot be started or does not answer in two minutes.
    """
    try:
        done = run_limited(hookless_command(python, _PROBE), limit_s=_PROBE_TIMEOUT_S)
        if done.code:
            raise _not_usable(python, f"it ended with {done.code}: {done.errors[-500:].strip()}")
        answer = json.loads(done.output)
    except RunTooLong as error:
        raise _not_usable(python, f"it did not answer in {_PROBE_TIMEOUT_S:.0f} s") from error
    except (OSError, ValueError) as error:
        raise _not_usable(python, str(error)) from error
    return InterpreterFacts(
        python=python,
        version=answer["version"],
        prefix=answer["prefix"],
        is_virtual=answer["is_virtual"],
        base_python=answer["base_python"],
        site_folders=tuple(answer["site_folders"]),
        scripts_folder=answer["scripts_folder"],
        script_files=tuple(answer["script_files"]),
        distributions=tuple(answer["distributions"]),
    )


def require_interpreter(python: str) -> None:
    """Check that `python` is a file, without starting it.

    Raises: AgentError naming the path and where to correct it.
    """
    path = Path(python)
    if not path.is_file():
        raise _not_usable(python, f"there is no such file on {socket.gethostname()}")


def _not_usable(python: str, reason: str) -> AgentError:
    return AgentError(
        f"The job's Python interpreter {python} cannot be used: {reason}. "
        "Correct [environments] in settings.toml on the service's machine, or have the interpreter under that path on "
        "every machine where hosts run.",
        details={"python": python},
    )
