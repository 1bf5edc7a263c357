"""Check that every host's name resolves to its address with the job's /etc/hosts.

Where: `network_measuring` starts it before its event loop and threads, since it forks, and collects the result last.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Mapping

from clary.agent.health.readings import NetworkOrder
from clary.agent.host import kernel
from clary.base.readiness import readable

_NAMES_S = 5.0
_ANSWER_BYTES = 1 << 20


class NameCheck:
    """Resolves the names of all hosts as the job's programs will: in a child with the same /etc/hosts.

    It needs a child because a resolver that ignores the file may wait for unreachable servers.
    """

    def __init__(self, order: NetworkOrder) -> None:
        self._pid = 0
        self._answer = -1
        self._end_s = time.monotonic() + _NAMES_S
        self._file = order.hosts_file
        if not order.hosts_file:
            return
        self._answer, write_end = os.pipe()
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                kernel.die_with_parent(signal.SIGKILL)
                if os.getppid() != parent:
                    os._exit(1)
                text = _look_up(order)
            except Exception as error:  # noqa: BLE001 - boundary: told to the parent
                text = json.dumps({"error": f"{type(error).__name__}: {error}"})
            os.write(write_end, text.encode())
            os._exit(0)
        os.close(write_end)

    def result(self) -> tuple[Mapping[str, str] | None, str]:
        """Return the address of each name and "", or None and the reason; "" too if there was nothing to check."""
        if not self._pid:
            return None, ""
        if not readable([self._answer], self._end_s - time.monotonic()):
            return None, f"names were not resolved within {_NAMES_S:g} s"
        try:
            found = json.loads(os.read(self._answer, _ANSWER_BYTES))
        except ValueError:
            return None, "the look-up ended without an answer"
        return (None, found["error"]) if "error" in found else (found, "")

    def close(self) -> None:
        """End the child."""
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            os.close(self._answer)
            self._pid = 0
            with contextlib.suppress(OSError):
                os.unlink(self._file)


def _look_up(order: NetworkOrder) -> str:
    own = [(order.host, order.address)]
    with open(order.hosts_file, "w", encoding="utf-8") as file:
        file.write("127.0.0.1 localhost\n")
        file.writelines(f"{address} {name}\n" for name, address in own + [(p.name, p.address) for p in order.peers])
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount(order.hosts_file, os.path.realpath("/etc/hosts"), flags=kernel.MS_BIND)
    found = {}
    for name in order.names:
        try:
            entries = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
            found[name] = ", ".join(sorted({str(entry[4][0]) for entry in entries}))
        except OSError as error:
            found[name] = f"nothing ({error.strerror or error})"
    return json.dumps(found)
