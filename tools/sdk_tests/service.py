"""A Clary service of its own for the SDK's tests."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_LIMIT_S = 120
_STOP_ATTEMPTS, _BETWEEN_STOPS_S = 3, 5.0
_FOREIGN = ("AWS_", "SAGEMAKER_", "CLARY_")


@contextlib.contextmanager
def running_service(home: Path, settings: str) -> Iterator[dict[str, str]]:
    """Start a service, yield the environment of its clients, and stop it."""
    home.mkdir(parents=True, exist_ok=True)
    (home / "settings.toml").write_text(settings, encoding="utf-8")
    own = _without_foreign()
    own |= {"CLARY_HOME": str(home), "CLARY_PORT": "0", "CLARY_TLS_PORT": str(_free_port())}
    try:
        _clary(own, "up")
        client = _without_foreign() | json.loads(_clary(own, "env", "--tls", "--json"))
        client["HOME"] = str(home / "client-home")
        Path(client["HOME"]).mkdir(exist_ok=True)
        yield client
    finally:
        _stop(own)


def _stop(own: dict[str, str]) -> None:
    """Stop the service; once more if that failed, for a tree that is edited meanwhile may not import for a moment."""
    for rest in reversed(range(_STOP_ATTEMPTS)):
        try:
            _clary(own, "down")
        except RuntimeError:
            if not rest:
                raise
            time.sleep(_BETWEEN_STOPS_S)
        else:
            return


def _without_foreign() -> dict[str, str]:
    """Return this process's environment without the variables that would send a client elsewhere."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}


def _clary(environment: dict[str, str], *arguments: str) -> str:
    command = [sys.executable, "-m", "clary.cli.main", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    if done.returncode:
        raise RuntimeError(f"clary {' '.join(arguments)} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port
