"""`gpu-N/...`: the GPUs of a host, from an nvidia-smi that runs while the host is measured.

Where: `metrics.host_metrics` creates one for hosts with GPUs in their plan. N is the GPU's index in its program, from
0. A new nvidia-smi for each row would cost more than all other sources together, because it opens the driver. This code
has not run with a GPU so far: tests replace nvidia-smi by a program.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
from collections.abc import Sequence

from clary.agent.metrics.gpu_texts import OLDER_NAMES, QUERY, GpuReading, parse_gpu_line
from clary.agent.metrics.sources import Values
from clary.agent.metrics.xid_log import XidLog

LEAST_INTERVAL_S = 0.5  # the driver's own values cover the last sixth of a second to a second
_RESTART_S = 60.0  # pause after the tool has ended by itself
_SILENT_S = 60.0  # a silent tool is killed after this time; a driver's start takes seconds per GPU
_STALE_INTERVALS, _STALE_S = 5, 5.0  # time without a line after which the last values are stale
_END_S = 2.0
_READ_BYTES = 64 * 1024

logger = logging.getLogger(__name__)


class GpuSource:
    """Reads the output of an nvidia-smi.

    Args:
        indices: of the host's GPUs, in the driver's order.
        interval_s: time between two lines of a GPU.
        xids: source of the errors reported by the driver.
        command: command of the tool.
    """

    def __init__(
        self,
        indices: Sequence[int],
        *,
        interval_s: float,
        xids: XidLog,
        command: Sequence[str] = ("nvidia-smi",),
    ) -> None:
        self._places = {index: place for place, index in enumerate(indices)}
        self._interval_s = max(LEAST_INTERVAL_S, interval_s)
        self._commands = _ways_to_ask(command, indices, loop_ms=round(self._interval_s * 1000))
        self._way = 0  # index of the command in use
        self._tool: subprocess.Popen[bytes] | None = None
        self._start_s: float | None = None  # earliest time of the next start of the tool
        self._heard_s = 0.0  # time of the tool's last reading, or of its start
        self._has_answered = False  # whether the tool has printed a reading since its start
        self._said = ""  # the tool's last line that is no reading
        self._is_killed = False
        self._rest = b""
        self._seen: dict[int, tuple[float, GpuReading]] = {}  # index -> time, reading
        self._xids = xids

    def read(self, now_s: float) -> Values:
        """Return the newest values of all GPUs."""
        has_ended = self._tool is not None and self._tool.poll() is not None
        for line in self._new_lines():  # includes the last lines of an ended tool
            self._take(line, now_s)
        self._keep_tool(now_s, has_ended=has_ended)
        self._xids.look()
        values: Values = {}
        for index, (seen_s, reading) in sorted(self._seen.items()):
            scope = f"gpu-{self._places[index]}"
            if now_s - seen_s <= max(_STALE_S, _STALE_INTERVALS * self._interval_s):
                values |= {f"{scope}/{name}": value for name, value in reading.values.items()}
            if self._xids.is_open:  # also for a silent GPU, since the error may be the cause
                values[f"{scope}/xid"] = float(self._xids.last_code(index))
        return values

    def close(self) -> None:
        """End the tool."""
        self._end_tool()

    def _take(self, line: str, now_s: float) -> None:
        reading = parse_gpu_line(line)
        if reading is None:
            self._said = line.strip() or self._said
        elif reading.index in self._places:
            self._seen[reading.index] = (now_s, reading)
            self._xids.name_gpu(reading.index, reading.bus)
            self._heard_s, self._has_answered = now_s, True

    def _keep_tool(self, now_s: float, *, has_ended: bool) -> None:
        if self._tool is not None and has_ended:
            self._start_s = now_s + self._rest_s(self._tool.poll())
            self._end_tool()
        elif self._tool is not None and not self._is_killed and now_s - self._heard_s > _SILENT_S:
            # Do not wait for the tool's end: if the driver hangs, the process ends when the driver answers again. Until
            # then no second nvidia-smi is started.
            logger.warning("nvidia-smi has said nothing for %g s: does the driver hang? It is ended", _SILENT_S)
            self._tool.kill()
            self._is_killed = True
        if self._tool is None and (self._start_s is None or now_s >= self._start_s):
            self._start_s = now_s + _RESTART_S
            try:
                # If the agent dies, the tool ends by SIGPIPE at its next line.
                self._tool = subprocess.Popen(
                    self._commands[self._way],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                )
            except OSError as error:
                logger.warning("GPUs are not measured: %s", error)
                self._start_s = float("inf")
                return
            assert self._tool.stdout is not None
            os.set_blocking(self._tool.stdout.fileno(), False)
            self._rest, self._said = b"", ""
            self._heard_s, self._has_answered, self._is_killed = now_s, False, False

    def _rest_s(self, code: int | None) -> float:
        """Return the pause after the tool's end, and choose the command of the next start."""
        is_last = self._way == len(self._commands) - 1
        if self._has_answered or self._is_killed or is_last:
            words = f" ({self._said})" if self._said else ""
            logger.warning("nvidia-smi has ended with %s%s; it is started again in %g s", code, words, _RESTART_S)
            self._way = self._way if self._has_answered else 0
            return _RESTART_S
        self._way += 1
        return 0.0

    def _new_lines(self) -> list[str]:
        if self._tool is None or self._tool.stdout is None:
            return []
        data = b""
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(self._tool.stdout.fileno(), _READ_BYTES):
                data += piece
                if len(data) > _READ_BYTES:  # other output follows at the next read
                    break
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[-_READ_BYTES:]
        return [line.decode("ascii", "replace") for line in lines]

    def _end_tool(self) -> None:
        tool, self._tool = self._tool, None
        if tool is None:
            return
        tool.kill()
        if tool.stdout is not None:
            tool.stdout.close()
        try:
            tool.wait(_END_S)
        except subprocess.TimeoutExpired:
            logger.warning("nvidia-smi hangs in the driver and does not end")


def _ways_to_ask(command: Sequence[str], indices: Sequence[int], *, loop_ms: int) -> list[list[str]]:
    """Return the commands to try in order until one works.

    Older drivers have another name for a quantity. If one GPU is lost, a command with its index may print no GPU at
    all.
    """
    older = [OLDER_NAMES.get(name, name) for name in QUERY]
    return [
        [*command, f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits", *which, f"--loop-ms={loop_ms}"]
        for which in ([f"--id={','.join(map(str, indices))}"], [])
        for names in (QUERY, older)
    ]
