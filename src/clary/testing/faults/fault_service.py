"""The process of the service that faults strike: its start, kill, restart and refusal to start.

Where: `fault_world` has one. It is started as `clary up` starts it, without the seconds that `clary up` itself takes.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from clary.base.errors import ClaryError
from clary.base.processes import ProcessId
from clary.control.state_folder import StateFolder
from clary.testing.faults.fault_clients import NoAnswer

START_TIMEOUT_S = 90.0
DOWN_TIMEOUT_S = 90.0
POLL_S = 0.02


class FaultService:
    """One service in a state folder.

    Args:
        home: the state folder.
        environment: gives the variables of the process at each start.
    """

    def __init__(self, home: Path, environment: Callable[[], Mapping[str, str]]) -> None:
        self.unexpected_ends: list[str] = []  # unexpected ends of the service, which no fault caused
        self._folder = StateFolder(home)
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._is_expected_up = False
        self._lock = threading.RLock()

    def start(self) -> None:
        """Start the service unless it runs, and wait until its record names it.

        Raises: NoAnswer with the end of its log.
        """
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                return
            deadline = time.monotonic() + START_TIMEOUT_S
            while time.monotonic() < deadline:
                self._process = self._spawn()
                if self._becomes_ready(self._process, deadline):
                    self._is_expected_up = True
                    return
            raise NoAnswer(f"the service did not start within {START_TIMEOUT_S:g} s:\n{self.log_tail()}")

    def kill(self) -> ProcessId | None:
        """Kill the service with SIGKILL; return the killed process."""
        with self._lock:
            process = self.process()
            self._is_expected_up = False
            if self._process is not None:
                self._process.kill()
                self._process.wait()
            return process

    @contextmanager
    def down(self) -> Iterator[None]:
        """Kill the service for the length of the block, then start it again; no other thread starts it meanwhile."""
        with self._lock:
            self.kill()
            try:
                yield
            finally:
                self.start()

    def refusal(self) -> str:
        """Try to start the service, which must refuse; return its log, or an empty string if it runs."""
        with self._lock:
            log = self._folder.service_log
            told_before = log.stat().st_size if log.exists() else 0
            process = self._process = self._spawn()
            if self._becomes_ready(process, time.monotonic() + START_TIMEOUT_S):
                return ""
            self.kill()  # has an effect only if the service neither starts nor ends
            with log.open("rb") as file:
                file.seek(told_before)
                return file.read().decode(errors="replace") or f"(nothing; it ended with {process.returncode})"

    def revive(self) -> None:
        """Start the service again if it has ended by itself, and record the end."""
        with self._lock:
            process = self._process
            has_ended = self._is_expected_up and process is not None and process.poll() is not None
            if has_ended and process is not None:
                self._is_expected_up = False
                self.unexpected_ends.append(f"the service ended by itself, {process.returncode}:\n{self.log_tail()}")
        if has_ended:
            self.start()

    @property
    def is_up(self) -> bool:
        """Whether the service has become ready and has not ended since."""
        return self._is_expected_up and self.process() is not None

    def process(self) -> ProcessId | None:
        """The service, if it runs."""
        process = self._process
        return None if process is None or process.poll() is not None else ProcessId.of(process.pid)

    def end(self) -> None:
        """End the service as `clary down` does, and kill it if it does not end."""
        process, self._is_expected_up = self._process, False
        if process is not None and process.poll() is None:
            process.terminate()
            try:
                process.wait(DOWN_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(DOWN_TIMEOUT_S)

    def log_tail(self) -> str:
        """Return the end of the service's log."""
        with suppress(OSError):
            return "\n".join(self._folder.service_log.read_text(errors="replace").splitlines()[-25:])
        return "(no log)"

    def _spawn(self) -> subprocess.Popen[bytes]:
        with self._folder.service_log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "clary.control.server"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(self._environment()),
                start_new_session=True,
                cwd="/",
            )

    def _becomes_ready(self, process: subprocess.Popen[bytes], deadline: float) -> bool:
        while time.monotonic() < deadline and process.poll() is None:
            with suppress(OSError, ValueError, ClaryError):
                record = self._folder.read_service_record()
                if record is not None and record.pid == process.pid:
                    return True
            time.sleep(POLL_S)
        return False
