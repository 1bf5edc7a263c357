"""Records of experiments in the store: one class for experiments, trials, trial components and artifacts.

Where: `store.tracking.experiments` reads and writes them, `services.experiments` gives them their meaning.
Names are unique regardless of case, as in the API; the record keeps their first spelling.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Row

from clary.base.errors import Fault, StoreError
from clary.control.store.damage import readable
from clary.control.store.tables import from_microseconds, to_microseconds, tracked

_TIME = "$time_us"  # key that marks a time in a stored document, since JSON has no times


class Kind(StrEnum):
    """Kind of a record; the value is the word in its ARN."""

    EXPERIMENT = "experiment"
    TRIAL = "experiment-trial"
    COMPONENT = "experiment-trial-component"
    ARTIFACT = "artifact"


@dataclass(frozen=True, kw_only=True)
class Tracked:
    """One immutable record."""

    kind: Kind
    name: str  # spelled as in the request that created it
    arn: str
    parent: str = ""  # experiment of a trial
    source: str = ""  # ARN of a component's job, URI of an artifact
    created_at: datetime
    modified_at: datetime
    # all other members, spelled as in the API; values may be times
    document: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The name in the form that the database compares."""
        return key_of(self.name)


@dataclass(frozen=True, kw_only=True)
class Association:
    """One edge of lineage, from a source to its result."""

    source_arn: str
    destination_arn: str
    association_type: str  # empty if the edge has no type
    source_type: str
    destination_type: str
    source_name: str
    destination_name: str
    created_at: datetime


class TrackedExists(StoreError):
    """A record of that kind and name exists already; `existing_arn` is its ARN."""

    default_fault = Fault.USER

    def __init__(self, kind: Kind, name: str, *, existing_arn: str) -> None:
        super().__init__(f"{kind.value} {name!r} already exists as {existing_arn}: choose another name, or delete it")
        self.existing_arn = existing_arn


class TrackedNotFound(StoreError):
    """No record of that kind and name is stored."""

    default_fault = Fault.USER

    def __init__(self, kind: Kind, name: str) -> None:
        super().__init__(f"there is no {kind.value} {name!r}: it was never created, or it was deleted")
        self.kind = kind
        self.tracked_name = name


class TrackedInUse(StoreError):
    """A record that other records depend on; the message names them."""

    default_fault = Fault.USER


def key_of(name: str) -> str:
    """Return a name in the form in which names are compared."""
    return name.lower()


def source_key_of(kind: Kind, source: str) -> str:
    """Return a source in the form in which sources are compared; in URIs, case counts."""
    return source if kind is Kind.ARTIFACT else key_of(source)


def values_of(thing: Tracked) -> dict[str, Any]:
    """Return the columns of a record."""
    return {
        "kind": thing.kind.value,
        "name_key": thing.key,
        "name": thing.name,
        "arn": thing.arn,
        "parent_key": key_of(thing.parent),
        "source_key": source_key_of(thing.kind, thing.source),
        "label": thing.document["ArtifactType"] if thing.kind is Kind.ARTIFACT else "",
        "created_at": to_microseconds(thing.created_at),
        "modified_at": to_microseconds(thing.modified_at),
        "document": json.dumps(
            {"parent": thing.parent, "source": thing.source, "members": thing.document}, default=_plain_time
        ),
    }


def tracked_of(row: Row[Any]) -> Tracked:
    """Return the record of a row; raises RowsUnreadable for a damaged row."""
    return readable([row], _tracked_of, table=tracked, key=lambda row: {"kind": row.kind, "name_key": row.name_key})[0]


def _tracked_of(row: Row[Any]) -> Tracked:
    document = json.loads(row.document, object_hook=_time_or_itself)
    return Tracked(
        kind=Kind(row.kind),
        name=row.name,
        arn=row.arn,
        parent=document["parent"],
        source=document["source"],
        created_at=from_microseconds(row.created_at),
        modified_at=from_microseconds(row.modified_at),
        document=document["members"],
    )


def _plain_time(value: Any) -> dict[str, int]:
    if isinstance(value, datetime):
        return {_TIME: to_microseconds(value)}
    raise TypeError(f"expected JSON or a time in a record, got {type(value).__name__}")


def _time_or_itself(members: dict[str, Any]) -> Any:
    return from_microseconds(members[_TIME]) if members.keys() == {_TIME} else members
