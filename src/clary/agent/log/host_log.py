"""The log of one host, from the output of processes to the lines that the service has stored.

    output_buffer (memory) -> log_intake (lines) -> log_spool (disk) -> log_shipper (service)

Where: `supervisor` creates one. One thread carries the output from the buffer to the disk, another from the disk to
the service, so that the program waits for neither.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Hashable
from pathlib import Path

from clary.agent.log.last_words import error_line
from clary.agent.log.log_intake import LogIntake
from clary.agent.log.log_shipper import LogReceiver, LogShipper
from clary.agent.log.log_spool import LogSpool
from clary.agent.log.metrics import MetricFinder
from clary.agent.log.output_buffer import OutputBuffer
from clary.agent.training.progress_watch import ProgressWatch
from clary.base.clock import Clock
from clary.contract.agent_protocol import Clue
from clary.contract.launch_plan import LaunchPlan
from clary.contract.stop_limits import LAST_OUTPUT_S


class HostLog:
    """Receives output of processes and sentences of the agent, and delivers both as numbered lines.

    Args:
        service: receives the lines.
        plan: of the attempt, with metric definitions and log rules.
        folder: the spool's folder, removed by `close`.
        clock: for progress bars and the limits on lines.
        on_over: called when the service accepts no more data of this attempt.
        on_note: called with a sentence about the log for users; from any thread.
    """

    def __init__(
        self,
        service: LogReceiver,
        *,
        plan: LaunchPlan,
        folder: Path,
        clock: Clock,
        on_over: Callable[[str], None],
        on_note: Callable[[str], None],
    ) -> None:
        self._folder = folder
        self._on_note = on_note
        self._is_hung = False
        self._spool = LogSpool(folder, clock=clock, max_bytes=plan.log_rules.spool_max_bytes)
        self.progress = ProgressWatch(clock)  # progress reports of the program
        self._intake = LogIntake(
            self._spool,
            clock=clock,
            rules=plan.log_rules,
            on_lines=lambda lines, rank: self.progress.feed(lines, rank=rank),
        )
        self._shipper = LogShipper(
            service,
            spool=self._spool,
            intake=self._intake,
            metrics=MetricFinder(plan.metric_definitions, on_note=self._warn),
            on_over=on_over,
            on_problem=on_note,
        )
        self._buffer = OutputBuffer(self._intake)
        self._shipper.start()

    @property
    def num_outputs(self) -> int:
        """Number of pieces of output so far; grows while the program prints."""
        return self._intake.num_outputs

    def open(self, key: Hashable, *, rank: int | None = None, prefix: str = "") -> None:
        """Set the prefix and rank of lines of the stream `key`, before its first bytes.

        Args: as `steps.OutputLog.open`.
        """
        self._intake.open(key, rank=rank, prefix=prefix)

    def on_output(self, key: Hashable, data: bytes) -> None:
        """Receive bytes of one stream, in order; empty bytes end it. It waits as `OutputBuffer.put`, if at all."""
        self._buffer.put(key, data)

    def say(self, *sentences: str) -> None:
        """Append the agent's own lines after the output so far."""
        self._buffer.say(*sentences)

    def end_output(self) -> None:
        """End the output: an incomplete last line becomes a line, and lost lines are reported."""
        self._flush()
        self._intake.finish()
        if self._intake.num_dropped:  # the log reports each gap where it occurred
            self._on_note(
                f"{self._intake.num_dropped} lines of output were dropped, because they came faster than the settings"
                " log_max_lines_per_s and log_max_bytes_per_s allow; print less or raise them"
            )
        if num_lost := self._spool.num_lost + self._buffer.num_lost:  # the log reports each gap where it occurred
            self._on_note(
                f"{num_lost} lines of output were lost, because the disk or the spool of this host was full; the log"
                " says where: free space, raise the setting log_spool_max_bytes, or print less"
            )

    def error_line(self, rank: int | None) -> str | None:
        """Return the line in which a process names its error, or None if no line is recognised."""
        self._flush()
        return error_line(self._intake.last_lines(rank))

    def clues(self) -> tuple[Clue, ...]:
        """Return the exceptions among the last lines of every process."""
        self._flush()
        return self._intake.clues()

    def drain(self, timeout_s: float, *, give_up: Callable[[], bool], most_s: float = math.inf) -> None:
        """Wait until the service has stored all lines so far.

        Args: as `LogShipper.drain`.
        """
        self._flush()
        began_s = time.monotonic()
        if not self._shipper.drain(timeout_s, give_up=give_up, most_s=most_s) and not give_up():
            took_s = time.monotonic() - began_s
            self._on_note(f"the service did not take the last log lines of this host within {took_s:.0f} s")

    def send_last(self, timeout_s: float, *, give_up: Callable[[], bool]) -> int:
        """Wait until the service has stored all lines, for `timeout_s` at most; return how many it has not stored.

        Args:
            timeout_s: longest wait, whether the service answers or not.
            give_up: called several times per second; True ends the wait.
        """
        self._flush()
        self._shipper.wait_sent(self._spool.end_sequence, timeout_s, is_vain=give_up)
        return self._shipper.num_unsent

    def close(self, timeout_s: float, *, keeps_unsent: bool = False) -> bool:
        """End the threads and remove the spool; return whether the threads ended in time.

        Args:
            timeout_s: longest wait for the threads.
            keeps_unsent: whether a spool with unsent lines stays, for a service on this machine.
        """
        has_flushed = self._buffer.close(timeout_s)
        has_stopped = self._shipper.close(timeout_s)
        keeps_files = keeps_unsent and self._shipper.num_unsent > 0
        self._spool.close(keeps_files=keeps_files)
        if not keeps_files:
            shutil.rmtree(self._folder, ignore_errors=True)
        return has_flushed and has_stopped

    def _flush(self) -> None:
        """Wait until the intake has received the buffer's content, for `LAST_OUTPUT_S` at most."""
        if not self._buffer.flush(0.0 if self._is_hung else LAST_OUTPUT_S) and not self._is_hung:
            self._is_hung = True  # the end of the job waits only once for a hanging disk, not for each call
            self._on_note(f"the disk of this host did not take the last output within {LAST_OUTPUT_S:g} s")

    def _warn(self, sentence: str) -> None:
        self._intake.say(sentence)
        self._on_note(sentence)
