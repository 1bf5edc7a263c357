"""Client of the process from which the agents of this machine's hosts are forked (`clary.agent.fork_server`).

Where: `LocalEngine` prepares it at each launch, while the network is made, and asks it for agents. An agent that is
forked saves 0.4 s of processor time. Without a server, or if the server fails, the engine starts agents as programs.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clary.base.processes import ProcessId
from clary.control.engines.local.agent_processes import AGENT, LastingProcess

FORK_TIMEOUT_S = 30.0  # longest wait for an agent; the first waits for imports, which take 0.5 s on a quiet machine
_END_TIMEOUT_S = 5.0  # longest wait for the end of a server that was killed
_MAX_ANSWER_BYTES = 4096
_MILLISECONDS = 1000  # per second
COMMAND = (sys.executable, "-P", "-m", "clary.agent.fork_server")

_log = logging.getLogger(__name__)


class ForkServer:
    """One process that forks agents, started when it is needed. Several threads may call the methods at the same time.

    The forking process ends when this object is freed, and when the calling process ends, even by SIGKILL, because its
    standard input then ends.

    Args:
        environment: variables of the process; each agent gets its own.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._lock = threading.Lock()
        self._running: _Running | None = None

    def prepare(self) -> None:
        """Start the process unless it runs; do not wait until it has imported its modules."""
        with self._lock:
            self._ensure()

    def fork(self, command: Sequence[str], *, log_path: Path, environment: Mapping[str, str]) -> ProcessId | None:
        """Return a new agent that runs a command, or None if no agent was started: the caller may start the command.

        Args:
            command: AGENT and its arguments; None is returned for any other program.
            log_path: file for the agent's output; the folder of this file becomes the agent's working directory.
            environment: all variables of the agent's environment.
        """
        if tuple(command[: len(AGENT)]) != AGENT:
            return None
        order = {"command": list(command), "environment": dict(environment), "log_path": str(log_path)}
        with self._lock:
            running = self._ensure()
            if running is None:
                return None
            answer = running.ask(json.dumps(order).encode() + b"\n", time.monotonic() + FORK_TIMEOUT_S)
            if "pid" in answer:
                return ProcessId(int(answer["pid"]), str(answer["started"]))
            _log.warning("agents are started without the fork server now: %s", answer.get("error"))
            running.end()
            self._running = None
            return None

    def close(self) -> None:
        """End the process; the next call of another method starts it again. Agents stay."""
        with self._lock:
            if self._running is not None:
                self._running.end()
                self._running = None

    def _ensure(self) -> _Running | None:
        if self._running is not None and self._running.child.poll() is not None:
            self._running.end()
            self._running = None
        if self._running is None:
            try:
                self._running = _Running(self._environment)
            except OSError as error:
                _log.warning("the fork server could not be started: %s", error)
        return self._running


class _Running:
    """A started server and its pipes. `end` kills the server, reaps it and closes the pipes; agents stay."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        orders, self._orders = os.pipe()
        self._answers, answers = os.pipe()
        os.set_blocking(self._orders, False)  # an order that does not fit into the pipe fails, and blocks no launch
        try:
            self.child = LastingProcess(
                list(COMMAND), stdin=orders, stdout=answers, env=dict(environment), cwd="/", start_new_session=True
            )
        except OSError:
            _close(self._orders, self._answers)
            raise
        finally:
            _close(orders, answers)
        self.end = weakref.finalize(self, _end, self.child, self._orders, self._answers)

    def ask(self, order: bytes, deadline: float) -> dict[str, Any]:
        """Return the answer to an order, or an answer with `error`, after which no agent of this order runs."""
        try:
            if os.write(self._orders, order) < len(order):  # the server reads nothing, or the variables fill the pipe
                return {"error": f"it took only a part of an order of {len(order)} bytes"}
            answer = self._read(deadline)
            if not answer:
                # An agent begins only after its answer is written. If the pipe holds no answer after the server was
                # killed, no agent will begin.
                self.child.kill()
                answer = self._read(time.monotonic() + _END_TIMEOUT_S)
        except OSError as error:
            return {"error": f"its pipe failed: {error}"}
        if not answer.endswith(b"\n"):
            return {"error": f"it did not answer an order within {FORK_TIMEOUT_S:g} s, or has ended"}
        return dict(json.loads(answer))

    def _read(self, deadline: float) -> bytes:
        """Return the next line of the server's answers, or its first part if the pipe ends or the deadline passes."""
        data = b""
        while not data.endswith(b"\n"):
            poll = select.poll()  # unlike select, it takes descriptors above 1023
            poll.register(self._answers, select.POLLIN)
            if not poll.poll(max(0.0, deadline - time.monotonic()) * _MILLISECONDS):
                break
            part = os.read(self._answers, _MAX_ANSWER_BYTES)
            if not part:
                break
            data += part
        return data


def _end(child: LastingProcess, *descriptors: int) -> None:
    _close(*descriptors)
    child.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(timeout=_END_TIMEOUT_S)


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
