"""Peers for `bench_logs` that carry a process's output to a file: syslog-ng with a disk buffer, and plain cat.

fluent-bit and vector come from registries that this project does not use; of what Debian has, syslog-ng is the one that
starts a program itself and reads its standard output. Lines go through two of its processes, as ours do: one beside the
program with a disk buffer, one that receives over TCP and writes the file. It acknowledges nothing and numbers nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.service import free_port
from benchmarks.sight.log_programs import flood_line

SYSLOG_NG = "syslog-ng"
TIMEOUT_S = 200.0
_PROGRAM = Path(__file__).with_name("log_programs.py")
_SENDER = """@version: 3.38
options {{ stats-freq(0); log-msg-size(65536); flush-lines(1000); }};
source s {{ program("{command}" flags(no-parse) log-iw-size(100000) log-fetch-limit(10000)); }};
destination d {{ network("127.0.0.1" port({port}) template("${{MESSAGE}}\\n")
    disk-buffer(reliable(no) mem-buf-length(100000) disk-buf-size(2147483648) dir("{folder}"))); }};
log {{ source(s); destination(d); flags(flow-control); }};
"""
_RECEIVER = """@version: 3.38
options {{ stats-freq(0); log-msg-size(65536); flush-lines(1000); }};
source s {{ network(ip("127.0.0.1") port({port}) flags(no-parse) log-iw-size(100000) log-fetch-limit(10000)); }};
destination d {{ file("{output}" template("${{MESSAGE}}\\n")); }};
log {{ source(s); destination(d); flags(flow-control); }};
"""


def syslog_ng_version() -> str | None:
    """Return syslog-ng's name with its version; None if it is not installed."""
    path = shutil.which(SYSLOG_NG, path=os.environ.get("PATH", "") + ":/usr/sbin")
    if path is None:
        print("no peer: syslog-ng is not installed (apt-get install syslog-ng-core)", file=sys.stderr)
        return None
    words = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout.split()
    return f"syslog-ng {words[2].strip('()')}" if len(words) > 2 else SYSLOG_NG


def syslog_ng_seconds(num_lines: int, line_bytes: int) -> float:
    """Return seconds from the first line's printing to the last in the receiver's file, which is checked."""
    with tempfile.TemporaryDirectory(prefix="clary-bench-") as name:
        folder, port = Path(name), free_port()
        output = folder / "received.log"
        command = f"{sys.executable} {_PROGRAM} flood {num_lines} {line_bytes}"
        (folder / "receiver.conf").write_text(_RECEIVER.format(port=port, output=output))
        (folder / "sender.conf").write_text(_SENDER.format(port=port, command=command, folder=folder))
        processes = []
        try:
            for role in ("receiver", "sender"):
                processes.append(_start(folder, role))
                time.sleep(1.0)  # it says nowhere when it listens
            return _until_complete(output, num_lines, line_bytes)
        finally:
            for process in reversed(processes):
                process.terminate()
                process.wait(30)


def cat_seconds(num_lines: int, line_bytes: int) -> float:
    """Return seconds for the same output through a pipe into a file that is forced to disk."""
    with tempfile.TemporaryDirectory(prefix="clary-bench-") as name:
        output = Path(name) / "output.log"
        with output.open("wb") as file:
            command = [sys.executable, str(_PROGRAM), "flood", str(num_lines), str(line_bytes)]
            with subprocess.Popen(command, stdout=subprocess.PIPE) as printing:
                subprocess.run(["cat"], stdin=printing.stdout, stdout=file, check=True, timeout=TIMEOUT_S)
            os.fsync(file.fileno())
            ended_at = time.time()
        with output.open() as file:
            return ended_at - float(file.readline().split()[1])


def _start(folder: Path, role: str) -> subprocess.Popen[bytes]:
    path = shutil.which(SYSLOG_NG, path=os.environ.get("PATH", "") + ":/usr/sbin") or SYSLOG_NG
    return subprocess.Popen(
        [
            *(path, "--foreground", "--no-caps", "--cfgfile", str(folder / f"{role}.conf")),
            *("--persist-file", str(folder / f"{role}.persist"), "--pidfile", str(folder / f"{role}.pid")),
            *("--control", str(folder / f"{role}.ctl")),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _until_complete(output: Path, num_lines: int, line_bytes: int) -> float:
    """Wait for the last line, check all of them, return the seconds from the first."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while not (output.exists() and output.stat().st_size > num_lines * line_bytes and _ends(output)):
        if time.monotonic() > deadline_s:
            raise SystemExit(f"syslog-ng did not write {num_lines} lines within {TIMEOUT_S:g} s")
        time.sleep(0.05)
    ended_at = time.time()
    with output.open() as file:
        began_at = float(file.readline().split()[1])
        for number in range(num_lines):
            if file.readline().rstrip("\n") != flood_line(number, line_bytes):
                raise SystemExit(f"syslog-ng: line {number} is not what was printed")
    return ended_at - began_at


def _ends(output: Path) -> bool:
    with output.open("rb") as file:
        file.seek(-min(output.stat().st_size, 200), os.SEEK_END)
        return b"\nEND " in file.read()
