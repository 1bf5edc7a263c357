"""The record of a host's health, by check and peer, and the merging of new findings into it. Pure.

Where: `host_health` keeps one record per host; several threads add findings, in any order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from clary.contract.health import Check, FindingState, HealthFinding

Record = Mapping[tuple[Check, str | None], HealthFinding]

_PENDING = FindingState.PENDING


def merged(record: Record, found: Sequence[HealthFinding]) -> Record:
    """Return the record with new findings; a final finding replaces a pending one, whichever comes first.

    A pending finding covers a whole link, and any finding on the link that is not pending replaces it.
    """
    known = [item for item in record.values() if item.state is not _PENDING]
    known_keys, known_peers = {_key(item) for item in known}, {item.peer for item in known} - {None}
    is_late = [item.state is _PENDING and (_key(item) in known_keys or item.peer in known_peers) for item in found]
    fresh = [item for item, late in zip(found, is_late, strict=True) if not late]
    told_peers = {item.peer for item in fresh if item.state is not _PENDING} - {None}
    kept = {key: item for key, item in record.items() if item.state is not _PENDING or item.peer not in told_peers}
    return kept | {_key(item): item for item in fresh}


def settled(record: Record, words: str) -> Record:
    """Return the record with pending findings marked as skipped for a reason."""
    return {
        key: replace(item, state=FindingState.SKIPPED, words=words) if item.state is _PENDING else item
        for key, item in record.items()
    }


def in_words(finding: HealthFinding) -> str:
    """Return a finding as one line for the log and for describe."""
    where = f"{finding.host} to {finding.peer}" if finding.peer is not None else finding.host
    cause = f" ({finding.cause})" if finding.cause else ""
    return f"health: {finding.check} of {where}: {finding.words}{cause}"


def _key(finding: HealthFinding) -> tuple[Check, str | None]:
    return finding.check, finding.peer
