"""Stores lines that a host's agent had written to its spool but not sent, or notes that they are lost.

Where: the reconciler calls this at the end of an attempt, before the host's folders are removed. An agent that is
killed, or released before the service has taken all lines, leaves its spool behind; lines are numbered, so the store
drops lines that were sent already. A job without isolation can change these files, so they are read only as lines of
that job's own log. Spools on other machines (boxes, nodes of Slurm) are out of reach here.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from clary.base.beneath import Folder
from clary.base.clock import Clock
from clary.base.errors import ClaryError
from clary.contract.agent_protocol import HostPhase, LogBlock
from clary.contract.log_blocks import SEGMENT_SUFFIX, SPOOL_FOLDER, parse_blocks
from clary.control.jobs.job_names import host_of_stream
from clary.control.jobs.training_job import TrainingJob
from clary.control.store.errors import SequenceGap

MAX_FILE_BYTES = 64 * 1024 * 1024  # four times the largest file that an agent writes
BLOCKS_AT_ONCE = 64

_UNSENT = "the lines that its agent had not sent, if there were any"

_log = logging.getLogger(__name__)


class LineStore(Protocol):
    """The part of the log store that is used here."""

    async def next_sequence(self, stream: str) -> int:
        """Return the number of the stream's next line."""

    async def append(self, stream: str, first_sequence: int, blocks: Sequence[LogBlock]) -> int:
        """Store lines exactly once by number; return the next number.

        Args: as `LogStore.append`.
        """


async def salvage_unsent_lines(logs: LineStore, job: TrainingJob, clock: Clock, *, told: set[str]) -> None:
    """Store lines that hosts have not sent, and note in their logs which lines are, or may be, missing; never raises.

    A second call does nothing: each spool is removed once its lines are stored.

    Args:
        logs: stores the lines.
        job: a job whose attempt has ended and whose host folders still exist.
        clock: gives the time of the note that is added to the logs.
        told: log streams of hosts on other machines to which the note was added; is changed.
    """
    for stream in job.log_streams:
        host = host_of_stream(stream)
        record = job.hosts.get(host)
        if job.plan is None or record is None:
            continue
        is_lost, num_unsent = record.facts.phase is HostPhase.LOST, record.facts.num_unsent_lines
        folder = Path(job.plan["work_folder"]) / host / SPOOL_FOLDER
        try:
            if (is_lost or num_unsent) and await asyncio.to_thread(folder.is_dir):
                how = "the agent of {} ended without leave" if is_lost else "{} was released before its log was sent"
                base = job.log_bases.get(stream, 0)
                await _salvage(logs, stream, folder, how=how.format(host), base=base, clock=clock)
                await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
            elif num_unsent and not is_lost and stream not in told:
                told.add(stream)
                words = f"the service did not take the last {num_unsent} log lines of {host} before its release"
                await _note(logs, stream, f"clary: {words}: they are lost", clock)
            elif is_lost and stream not in told and not await asyncio.to_thread(folder.parent.exists):
                told.add(stream)
                await _note(logs, stream, f"clary: {host} was lost, and with it {_UNSENT}", clock)
        except (ClaryError, OSError, ValueError) as error:
            _log.warning("job %s: lines that %s had not sent are lost: %s", job.name, host, error)


async def _salvage(logs: LineStore, stream: str, folder: Path, *, how: str, base: int, clock: Clock) -> None:
    stored = first = await logs.next_sequence(stream)
    is_whole = True
    for path in sorted(await asyncio.to_thread(lambda: list(folder.glob("*" + SEGMENT_SUFFIX)))):
        sequence = base + int(path.name.removesuffix(SEGMENT_SUFFIX))
        blocks = await asyncio.to_thread(_read, path)
        try:
            for begin in range(0, len(blocks), BLOCKS_AT_ONCE):
                some = blocks[begin : begin + BLOCKS_AT_ONCE]
                stored = await logs.append(stream, sequence, some)
                sequence += sum(block.num_lines for block in some)
        except SequenceGap:  # a gap: the agent kept its own messages in memory while its disk was full
            is_whole = False
            break
    words = (
        f"clary: {how}: {stored - first} lines came from its spool after its end;"
        f" what it had not written there {'may be' if is_whole else 'is'} missing here"
    )
    await _note(logs, stream, words, clock)


async def _note(logs: LineStore, stream: str, words: str, clock: Clock) -> None:
    at_ms = int(clock.now().timestamp() * 1000)
    await logs.append(stream, await logs.next_sequence(stream), [LogBlock(at_ms=at_ms, text=words)])


def _read(path: Path) -> list[LogBlock]:
    """Return the complete blocks of a spool file. Raises: OSError for a link, ValueError for too large a file."""
    with Folder.at(path.parent) as folder, open(folder.open_file(path.name), "rb") as file:
        if os.fstat(file.fileno()).st_size > MAX_FILE_BYTES:
            raise ValueError(f"{path} is too large to be a file of an agent")
        return parse_blocks(file.read(MAX_FILE_BYTES))[0]
