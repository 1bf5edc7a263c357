"""A fake judge of files: each file counts as closed by its writer, except where a test decides otherwise."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from clary.agent.checkpoints.evidence.observations import Decision, ProgramEnd
from clary.agent.checkpoints.scanning import Snapshot
from clary.contract.checkpoint_evidence import Evidence

CLOSED = Decision(is_whole=True, evidence=Evidence.CLOSED)
HELD = Decision(is_whole=False, reason="process 1 (writer) has it open for writing", is_blocking=True)


class FakeJudge:
    """Decisions by path; CLOSED for all other paths."""

    def __init__(self) -> None:
        self.decisions: dict[str, Decision] = {}

    def decide(
        self, snapshot: Snapshot, paths: Collection[str], *, end: ProgramEnd | None = None
    ) -> Mapping[str, Decision]:
        return {path: self.decisions.get(path, CLOSED) for path in paths}
