"""Metric definitions of a job, applied to its log lines.

Where: `log_batches` passes every line through `MetricFinder.find`, which adds the line's metric values. Group 1 of a
definition's regular expression is the value; values that are not finite numbers are ignored. Matching runs in a
separate process (`metric_matching`), because a regular expression cannot be stopped from another thread.
Source: AlgorithmSpecification.MetricDefinitions (AWS API reference).
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from clary.agent.log.metric_matching import MATCH_LIMIT_S
from clary.base.limited_runs import end_process
from clary.contract.agent_protocol import LogBlock, MetricValue
from clary.contract.launch_plan import MetricDefinition

MATCHED_CHARACTERS = 4096  # number of characters searched in each line; metrics further to the right are not found
START_LIMIT_S = 10.0  # time for the start of the matching process on a busy machine
_SCRIPT = Path(__file__).with_name("metric_matching.py")
_READ_BYTES = 65536


class MetricFinder:
    """Finds metric values in lines; used by one thread.

    Args:
        definitions: the metrics to find; if empty, no process is started and lines are returned unchanged.
        on_note: called once, with a sentence, for each definition that is not used or no longer used, and if the
            matching process fails.
    """

    def __init__(self, definitions: Sequence[MetricDefinition], *, on_note: Callable[[str], None]) -> None:
        self._definitions = definitions
        self._on_note = on_note
        self._process: subprocess.Popen[bytes] | None = None
        self._has_given_up = not definitions
        self._unread = b""

    def find(self, blocks: list[LogBlock]) -> list[LogBlock]:
        """Return the lines with their metric values; no pattern or line causes an error."""
        if self._has_given_up or not blocks:
            return blocks
        lines = [line for block in blocks for line in block.lines()]
        try:
            answer = self._ask([line[:MATCHED_CHARACTERS] for line in lines])
        except (OSError, ValueError) as error:
            self._has_given_up = True
            self._end()
            self._on_note(f"metrics are not looked for any more: the matching process failed: {error}")
            return blocks
        for index in answer["slow"]:
            self._on_note(
                f"metric {self._definitions[index].name!r} is not looked for any more: its pattern"
                f" {self._definitions[index].regex!r} took longer than {MATCH_LIMIT_S:g} s on one line"
            )
        found: dict[int, list[tuple[str, float]]] = {}
        for line_index, definition_index, value in answer["found"]:
            found.setdefault(line_index, []).append((self._definitions[definition_index].name, float(value)))
        return _with_values(blocks, found) if found else blocks

    def close(self) -> None:
        """End the matching process."""
        self._has_given_up = True
        self._end()

    def _ask(self, texts: list[str]) -> Any:
        if self._process is None:
            self._start()
        # Each pattern is dropped after its first slow line, so this is the longest time for a batch.
        return self._exchange(texts, START_LIMIT_S + MATCH_LIMIT_S * (len(self._definitions) + 1))

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            bufsize=0,
            # Signals to the agent's process group must not end the matching before the last lines.
            start_new_session=True,
        )
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)  # only this end of the pipe
        errors = self._exchange([definition.regex for definition in self._definitions], START_LIMIT_S)
        for definition, error in zip(self._definitions, errors, strict=True):
            if error is not None:
                self._on_note(f"metric {definition.name!r} is not looked for: {definition.regex!r}: {error}")

    def _exchange(self, request: Any, limit_s: float) -> Any:
        """Write a line and read the answer; the process reads the whole line before it answers: no deadlock."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        deadline_s = time.monotonic() + limit_s
        self._send(self._process.stdin.fileno(), json.dumps(request).encode() + b"\n", deadline_s, limit_s)
        descriptor = self._process.stdout.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                left_s = deadline_s - time.monotonic()
                if left_s <= 0 or not selector.select(left_s):
                    raise TimeoutError(f"no answer within {limit_s:g} s")
                data = os.read(descriptor, _READ_BYTES)
                if not data:
                    raise ChildProcessError(f"it ended with status {self._process.poll()}")
                self._unread += data
        answer, _, self._unread = self._unread.partition(b"\n")
        return json.loads(answer)

    @staticmethod
    def _send(descriptor: int, data: bytes, deadline_s: float, limit_s: float) -> None:
        """Write to a pipe that does not block. Raises: TimeoutError if the process does not read.

        Args:
            descriptor: writing end of the pipe.
            data: what is written.
            deadline_s: monotonic time at which the wait ends.
            limit_s: the whole limit, for the error.
        """
        left = memoryview(data)
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_WRITE)
            while left:
                left_s = deadline_s - time.monotonic()
                if left_s <= 0 or not selector.select(left_s):
                    raise TimeoutError(f"it read nothing within {limit_s:g} s")
                left = left[os.write(descriptor, left) :]

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        end_process(process)


def _with_values(blocks: list[LogBlock], found: dict[int, list[tuple[str, float]]]) -> list[LogBlock]:
    """Return the blocks with each line that has values split off as a block of its own.

    Args:
        blocks: blocks of lines, which are counted from 0.
        found: line -> (name, value) of its metrics, ordered by line.
    """
    result = []
    first = 0
    for block in blocks:
        lines = block.lines()
        done = 0
        for index in [index for index in range(first, first + len(lines)) if index in found]:
            if index - first > done:
                result.append(replace(block, text="\n".join(lines[done : index - first])))
            at = datetime.fromtimestamp(block.at_ms / 1000, timezone.utc)
            values = tuple(MetricValue(name=name, value=value, at=at) for name, value in found[index])
            result.append(replace(block, text=lines[index - first], metrics=values))
            done = index - first + 1
        if done < len(lines):
            result.append(replace(block, text="\n".join(lines[done:])) if done else block)
        first += len(lines)
    return result
