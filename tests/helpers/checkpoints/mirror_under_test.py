"""A mirror with its threads, between a folder and a store in memory."""

from __future__ import annotations

import time
from pathlib import Path

from fake_checkpoint_store import FakeCheckpointStore
from mirrored_folder import MirroredFolder

from clary.agent.checkpoints.evidence.witness import Witness
from clary.agent.checkpoints.mirror import Mirror
from clary.agent.checkpoints.outcomes import Listeners
from clary.agent.checkpoints.progress import Progress
from clary.base.clock import SystemClock
from clary.contract.agent_protocol import CheckpointFacts

INTERVAL_S = 0.1
PATIENCE_S = 20.0


class MirrorUnderTest:
    """A mirror of a folder, and the facts, log lines and notes that it produces."""

    def __init__(
        self, tmp_path: Path, store: FakeCheckpointStore, *, settle_s: float = 0.05, interval_s: float = INTERVAL_S
    ) -> None:
        self.host = MirroredFolder(tmp_path, store)
        self.store = store
        self.facts: list[CheckpointFacts] = []
        self.lines: list[str] = []
        self.notes: list[str] = []
        clock = SystemClock()
        self.witness = Witness(self.host.folder, clock=clock, note=self.notes.append, least_rest_s=6 * INTERVAL_S)
        self.witness.start()
        self.mirror = Mirror(
            self.host.folder,
            self.host.writer,
            self.host.publisher,
            judge=self.witness,
            progress=Progress(CheckpointFacts(), interval_s=INTERVAL_S, clock=clock),
            listeners=Listeners(tell=self.facts.append, say=self.lines.append, note=self.notes.append),
            break_off=store.close,
            interval_s=interval_s,
            clock=clock,
            settle_s=settle_s,
        )
        self.mirror.start()

    def close(self) -> None:
        """End all threads; checks that they ended."""
        self.mirror.abort()
        assert self.mirror.join(PATIENCE_S)
        assert self.witness.close(PATIENCE_S)

    def wait_for(self, condition) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline_s, (self.facts[-1:], self.lines, self.notes)
            time.sleep(0.01)
