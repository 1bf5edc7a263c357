"""Writers that are killed with SIGKILL while they write, and the writes that the store acknowledged to them.

Run as a program, this file is the nursery: it imports the store once and forks a writer for each line on its input,
so that twenty crashes take seconds. A writer prints every acknowledgement; the test reads them until the writer dies.
"""

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from clary.contract.agent_protocol import LogBlock
from clary.control.store.database import open_engines, parse_url
from clary.control.store.log_files.logs import LogStore
from clary.control.store.store import Store

STREAM = "crash/algo-1-1"
_WAIT_S = 30.0


class CrashNursery:
    """Starts writers and kills them; a context manager that leaves no process behind."""

    def __init__(self, database_url: str, log_folder: Path) -> None:
        self._url = database_url
        self._log_folder = log_folder
        self._token: str | None = None  # lines before this token were checked after an earlier crash
        self._num_checked = 0

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        return self

    def __exit__(self, *_error: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(_WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(_WAIT_S)
        self._process.stdout.close()

    def run_and_kill(self, round_number: int, *, after_s: float) -> tuple[set[str], int]:
        """Kill a writer `after_s` after its first acknowledgements; return the acknowledged jobs and line count."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        watchdog = threading.Timer(_WAIT_S, self._process.kill)
        watchdog.start()
        try:
            arguments = {"url": self._url, "logs": str(self._log_folder), "round": round_number}
            print(json.dumps(arguments), file=self._process.stdin, flush=True)
            pid = int(self._process.stdout.readline())
            jobs: set[str] = set()
            next_line = 0
            killer: threading.Timer | None = None
            for line in self._process.stdout:
                kind, _, value = line.strip().partition(" ")
                if kind == "ended":
                    assert value == str(signal.SIGKILL.value), f"the writer ended by itself: {value}"
                    break
                if kind == "job":
                    jobs.add(value)
                elif kind == "line":
                    next_line = int(value)
                if killer is None and jobs and next_line:
                    killer = threading.Timer(after_s, os.kill, (pid, signal.SIGKILL))
                    killer.start()
            else:
                raise AssertionError("the nursery died")
            assert killer is not None
            killer.join()
            return jobs, next_line
        finally:
            watchdog.cancel()

    async def check_logs(self, *, at_least: int) -> int:
        """Assert that the log holds lines 0, 1, 2... without a gap, `at_least` of them; return their number."""
        logs = LogStore(self._log_folder)
        try:
            while True:
                page = await logs.get_events(STREAM, from_head=True, token=self._token)
                for event in page.events:
                    assert event.message == str(self._num_checked)
                    self._num_checked += 1
                if page.next_forward_token == self._token:
                    break
                self._token = page.next_forward_token
            assert self._num_checked >= at_least
            return self._num_checked
        finally:
            await logs.close()


def main() -> None:
    """Fork a writer for each line on the standard input."""
    import store_contract  # noqa: F401 - the writers use it; loaded once, before they are forked

    for line in sys.stdin:
        arguments = json.loads(line)
        for engine in open_engines(parse_url(arguments["url"]), num_readers=1):
            engine.dispose()  # opens no connection: this loads the driver before the fork
        may_begin, begin = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.read(may_begin, 1)
            asyncio.run(_write_for_ever(arguments["url"], arguments["logs"], arguments["round"]))
        print(pid, flush=True)
        os.write(begin, b"!")
        os.close(begin)
        os.close(may_begin)
        _pid, status = os.waitpid(pid, 0)
        print("ended", os.waitstatus_to_exitcode(status) * -1, flush=True)


async def _write_for_ever(url: str, log_folder: str, round_number: int) -> None:
    from store_contract import make_job

    store = await Store.open(url)
    logs = LogStore(log_folder)
    await logs.create_stream(STREAM, datetime.now(UTC))
    numbers = itertools.count()

    async def create() -> None:
        for number in numbers:
            name = f"r{round_number}-{number}"
            await store.create_job(make_job(name), {"a": "b"})
            os.write(1, f"job {name}\n".encode())

    async def log() -> None:
        sequence = await logs.next_sequence(STREAM)
        while True:
            # Resends one line, as an agent does whose last acknowledgement was lost.
            first = max(0, sequence - 1)
            lines = [LogBlock(at_ms=1000 + number, text=str(number)) for number in range(first, sequence + 3)]
            sequence = await logs.append(STREAM, first, lines)
            os.write(1, f"line {sequence}\n".encode())

    await asyncio.gather(*(create() for _ in range(8)), log())


if __name__ == "__main__":
    main()
