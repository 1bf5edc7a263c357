"""A service of its own for a benchmark, in a temporary state folder."""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.lines import ROOT

TRAIN_PYTHON = ROOT / ".venvs/train/bin/python"


@dataclass(frozen=True)
class BenchmarkService:
    """A running service, and the environment for its clients."""

    home: Path
    environment: dict[str, str]
    own_environment: dict[str, str]  # of the service itself

    def start_again(self) -> None:
        """Start the service after it was killed."""
        _clary(self.own_environment, "up")

    def clary(self, *arguments: str) -> str:
        """Run a command of `clary` against the service and return its output; exits if it fails."""
        return _clary(self.own_environment, *arguments)


@contextlib.contextmanager
def running_service(
    settings: str = "",
    *,
    default_python: Path = TRAIN_PYTHON,
    prepare: Callable[[Path], None] | None = None,
    variables: Mapping[str, str] | None = None,
) -> Iterator[BenchmarkService]:
    """Start a service, yield it, stop it and remove its folder.

    Args:
        settings: text of its settings.toml.
        default_python: for jobs.
        prepare: may fill its state folder before.
        variables: of its environment, besides ours.
    """
    with tempfile.TemporaryDirectory(prefix="clary-bench-") as folder:
        home = Path(folder) / "home"
        home.mkdir()
        (home / "settings.toml").write_text(settings)
        if prepare is not None:
            prepare(home)
        environment = {
            **os.environ,
            "CLARY_HOME": str(home),
            "CLARY_PORT": str(free_port()),
            "CLARY_TLS_PORT": "0",
            "CLARY_DEFAULT_PYTHON": str(default_python),
            "CLARY_VISIBLE_FOLDERS": f"{ROOT / 'benchmarks'}:{ROOT / '.venvs'}",  # programs that jobs start by path
            **(variables or {}),
        }
        _clary(environment, "up")
        try:
            clients = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
            for line in _clary(environment, "env").splitlines():
                if line.startswith("export "):
                    name, _, value = line.removeprefix("export ").partition("=")
                    clients[name] = shlex.split(value)[0]
            yield BenchmarkService(home, clients, environment)
        finally:
            _clary(environment, "down")


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def _clary(environment: dict[str, str], *arguments: str) -> str:
    command = [sys.executable, "-m", "clary.cli.main", *arguments]
    completed = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    if completed.returncode != 0:
        raise SystemExit(f"clary {arguments} failed:\n{completed.stdout}{completed.stderr}")
    return completed.stdout
