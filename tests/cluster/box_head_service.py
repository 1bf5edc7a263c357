"""A service on the head of a bed that has only the scheduler of boxes, and helpers that wait for it.

Where: tests of boxes over a real sshd (`box_world`), and of jobs on boxes (`box_heads`).
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from clary.testing.box_bed import END_LIMIT_S, HEAD, HEAD_ADDRESS, PATH, POLL_S, PORT, START_LIMIT_S

ROOT = Path(__file__).resolve().parents[2]


class BoxService:
    """The process of `box_service.py` on the head of a bed."""

    def __init__(self, bed):
        self.bed = bed

    def start(self, *, advertised=HEAD_ADDRESS):
        """Start the service on the records of an earlier one; boxes receive this address."""
        program = str(ROOT / "tests/helpers/box_service.py")
        command = [sys.executable, program, str(self.bed.home), advertised, str(PORT)]
        self._process = subprocess.Popen(
            self.bed.argv_on(HEAD, *command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env={"PATH": PATH, "PYTHONPATH": f"{ROOT / 'tests/helpers'}:{ROOT / 'src'}"},
        )
        assert self._process.stdout.readline() == "ready\n"
        return self

    def kill(self):
        """Kill the service, as a crash would end it."""
        for child in Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split():
            os.kill(int(child), signal.SIGKILL)
        self._leave()

    def stop(self):
        """Shut the service down in order."""
        if self._process.poll() is None:
            self._process.stdin.close()
        self._leave()

    def _leave(self):
        self._process.wait(END_LIMIT_S)
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(BrokenPipeError):
                stream.close()

    def ask(self, *what):
        """Return the scheduler's answer to a call."""
        self._process.stdin.write(json.dumps(what) + "\n")
        line = self._process.stdout.readline()
        assert line, f"the service ended at {what}"
        return json.loads(line)

    def told(self, tag):
        """Return the scheduler's record of one allocation."""
        return self.ask("allocations").get(tag)


def until(look, words, *, limit_s=START_LIMIT_S):
    """Call `look` until its result is true; return the result. `words` may be a function that returns the words."""
    deadline = time.monotonic() + limit_s
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < deadline, f"{words() if callable(words) else words}: not within {limit_s} s"
        time.sleep(POLL_S)


def remove_bed(folder):
    """Remove the folder of a bed that was stopped."""
    shutil.rmtree(folder)
