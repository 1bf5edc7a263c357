"""A real service in its own state folder, and client scripts in their own environments."""

import json
import os
import shlex
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from needs import require_python

ROOT = Path(__file__).resolve().parents[2]
CLIENTS = Path(__file__).parent / "clients"
TRAIN_PYTHON = ROOT / ".venvs/train/bin/python"
SDK2_PYTHON = ROOT / ".venvs/sdk2/bin/python"
SDK3_PYTHON = ROOT / ".venvs/sdk3/bin/python"
TOOLKIT_PYTHON = ROOT / ".venvs/toolkit/bin/python"
CLIENT_TIMEOUT_S = 400
UP_ATTEMPTS = 3
ASKS_STS = ("v2_model_trainer.py", "v2_execution_role.py")
SETTINGS = f"""
max_hosts = 8
memory_overcommit = 32.0
stop_grace_s = 10.0
visible_folders = "{ROOT / ".venvs"}:{ROOT / "tests"}"  # of programs that jobs of tests start by path
[images]
"team/bring-your-own:*" = "train"
"team/remote:*" = "sdk2"
"team/remote3:*" = "sdk3"
"team/toolkit:*" = "toolkit"
"tensorflow-training:*" = "train"
[environments]
train = "{TRAIN_PYTHON}"
sdk2 = "{SDK2_PYTHON}"
sdk3 = "{SDK3_PYTHON}"
toolkit = "{TOOLKIT_PYTHON}"
"""


@dataclass
class RunningService:
    """A service started by `clary up`."""

    home: Path
    environment: dict  # of clients, as set by `eval "$(clary env)"`
    tls_environment: dict  # the same for `clary env --tls`
    variables: dict  # settings of the service, for every `clary up` of it

    def clary(self, *arguments, check=True, timeout=90):
        """Run a command of `clary`; return the completed process."""
        return subprocess.run(
            [sys.executable, "-m", "clary.cli.main", *arguments],
            env={**os.environ, **self.variables, "CLARY_HOME": str(self.home)},
            capture_output=True,
            text=True,
            check=check,
            timeout=timeout,
        )

    def run_client(self, python, script, *arguments, timeout=CLIENT_TIMEOUT_S):
        """Run a client script; return its output and the facts on its RESULT line.

        Scripts that call STS at its fixed address get the variables of `clary env --tls`.
        """
        require_python(python)
        needs_tls = script in ASKS_STS
        completed = subprocess.run(
            [str(python), str(CLIENTS / script), *arguments],
            env=self.tls_environment if needs_tls else self.environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd=self.home,
        )
        output = completed.stdout + completed.stderr
        assert completed.returncode == 0, f"{script} {arguments} ended with {completed.returncode}:\n{output[-6000:]}"
        lines = [line for line in completed.stdout.splitlines() if line.startswith("RESULT ")]
        assert lines, f"{script} reported nothing:\n{output[-6000:]}"
        return output, json.loads(lines[-1].removeprefix("RESULT "))


def start_service(home, settings=SETTINGS, **variables):
    """Start a service for `home` on a free port; return it."""
    home.mkdir(parents=True, exist_ok=True)
    (home / "settings.toml").write_text(settings)
    defaults = {"CLARY_PORT": "0", "CLARY_TLS_PORT": str(_free_port()), "CLARY_DEFAULT_PYTHON": str(TRAIN_PYTHON)}
    service = RunningService(home, {}, {}, defaults | variables)
    for _ in range(UP_ATTEMPTS):
        completed = service.clary("up", check=False)
        said = completed.stdout + completed.stderr
        # Another test's service may have taken the TLS port since it was found free; only this error is retried.
        if f"cannot listen on 127.0.0.1:{service.variables['CLARY_TLS_PORT']}" not in said:
            break
        service.variables["CLARY_TLS_PORT"] = str(_free_port())
    assert completed.returncode == 0, said
    service.environment = client_environment(service)
    service.tls_environment = client_environment(service, "--tls")
    return service


def client_environment(service, *arguments):
    """Return an environment whose AWS variables come only from `clary env`."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "SAGEMAKER_", "CLARY_"))}
    clean["HOME"] = str(service.home / "client-home")
    Path(clean["HOME"]).mkdir(exist_ok=True)
    for line in service.clary("env", *arguments).stdout.splitlines():
        if line.startswith("export "):
            name, _, value = line.removeprefix("export ").partition("=")
            clean[name] = shlex.split(value)[0]
    return clean


def _free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]
