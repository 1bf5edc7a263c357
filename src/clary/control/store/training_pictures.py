"""Histograms and images of trainings in the database: a bounded number for each tag, thinned out as more arrive.

Where: `training_records` stores them, in the transaction that counts a host's findings, and reads them for pages.
`jobs.kept_pictures` decides which pictures stay. A row for each tag (`training_tags`) counts received and stored
pictures, so that storing a batch does not require reading all pictures.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, text

from clary.contract.training_values import FindingKind
from clary.control.jobs.kept_pictures import MOST_TAGS, TagSize, surplus, tags_to_thin
from clary.control.store.tables import from_microseconds, to_microseconds, training_pictures, training_tags

_IDS_AT_ONCE = 500  # ids in one statement

_SET_TAG = text(
    "INSERT INTO training_tags (job_name, kind, tag, num_seen, num_kept, kept_bytes, last_step)"
    " VALUES (:job_name, :kind, :tag, :num_seen, :num_kept, :kept_bytes, :last_step)"
    " ON CONFLICT (job_name, kind, tag) DO UPDATE SET num_seen = excluded.num_seen, num_kept = excluded.num_kept,"
    " kept_bytes = excluded.kept_bytes, last_step = excluded.last_step"
)


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A histogram or an image of one step, with the file and offset where the program wrote it."""

    kind: str
    tag: str
    at: datetime
    step: int | None
    file: str
    offset: int
    size_bytes: int
    data: bytes | None  # None for an image that is not stored, or whose bytes were not requested
    id: int = 0
    is_kept: bool = True  # whether the database has its data


@dataclass(frozen=True, kw_only=True)
class TagFacts:
    """One tag with pictures."""

    kind: str
    tag: str
    num_seen: int  # pictures received from the program
    num_values: int  # stored pictures
    kept_bytes: int
    last_step: int | None


def put_pictures(connection: Connection, owner: Mapping[str, Any], pictures: Sequence[Picture]) -> None:
    """Store pictures of a host, and delete surplus pictures; new tags beyond the limit are ignored.

    Args:
        connection: inside a transaction that the caller commits.
        owner: columns job_name, attempt and host of the pictures.
        pictures: in order of their numbers.
    """
    job_name = owner["job_name"]
    known = {(one.kind, one.tag): one for one in tags_of(connection, job_name)}
    changed: set[tuple[str, str]] = set()
    num_tags = {kind: sum(key[0] == kind for key in known) for kind in MOST_TAGS}
    rows = []
    for picture in pictures:
        key, kind = (picture.kind, picture.tag), FindingKind(picture.kind)
        if key not in known:
            if num_tags[kind] >= MOST_TAGS[kind]:
                continue
            num_tags[kind] += 1
        known[key] = _with_picture(known.get(key), picture)
        changed.add(key)
        rows.append(_row_of(owner, picture))
    if not rows:
        return
    connection.execute(insert(training_pictures), rows)
    sizes = [
        TagSize(kind=FindingKind(one.kind), tag=one.tag, num_kept=one.num_values, kept_bytes=one.kept_bytes)
        for one in known.values()
    ]
    for size, most in tags_to_thin(sizes):
        key = (size.kind.value, size.tag)
        num_gone, gone_bytes = _thin(connection, job_name, key, most)
        fact = known[key]
        known[key] = replace(fact, num_values=fact.num_values - num_gone, kept_bytes=fact.kept_bytes - gone_bytes)
        changed.add(key)
    # Sorted by key, so that two writers on PostgreSQL cannot deadlock.
    connection.execute(_SET_TAG, [_tag_row(job_name, known[key]) for key in sorted(changed)])


def tags_of(connection: Connection, job_name: str) -> list[TagFacts]:
    """Return every tag of a job that has histograms or images."""
    columns = training_tags.c
    statement = select(training_tags).where(columns.job_name == job_name).order_by(columns.kind, columns.tag)
    return [
        TagFacts(
            kind=row.kind,
            tag=row.tag,
            num_seen=row.num_seen,
            num_values=row.num_kept,
            kept_bytes=row.kept_bytes,
            last_step=row.last_step,
        )
        for row in connection.execute(statement)
    ]


def pictures_of(connection: Connection, job_name: str, kind: str, tag: str, *, most: int) -> list[Picture]:
    """Return the newest pictures of a tag, oldest first; images come without their bytes.

    Args:
        connection: connection to the database.
        job_name: name of any job.
        kind: a `FindingKind`, image or histogram.
        tag: tag of the pictures.
        most: number of pictures.
    """
    columns = training_pictures.c
    wanted: list[Any] = [column for column in columns if column.name != "data" or kind != FindingKind.IMAGE]
    statement = (
        select(*wanted, columns.data.is_not(None).label("is_kept"))
        .where(columns.job_name == job_name, columns.kind == kind, columns.tag == tag)
        .order_by(columns.id.desc())
        .limit(most)
    )
    return [_picture_of(row) for row in reversed(connection.execute(statement).mappings().all())]


def picture_by_id(connection: Connection, job_name: str, picture_id: int) -> Picture | None:
    """Return one picture with its bytes, or None if the job has no picture with that id.

    Args:
        connection: connection to the database.
        job_name: job that the picture must belong to.
        picture_id: `Picture.id`.
    """
    columns = training_pictures.c
    statement = select(training_pictures).where(columns.job_name == job_name, columns.id == picture_id)
    row = connection.execute(statement).mappings().one_or_none()
    return None if row is None else replace(_picture_of(row), is_kept=row["data"] is not None)


def _with_picture(fact: TagFacts | None, picture: Picture) -> TagFacts:
    if fact is None:
        fact = TagFacts(
            kind=picture.kind, tag=picture.tag, num_seen=0, num_values=0, kept_bytes=0, last_step=picture.step
        )
    steps = [step for step in (fact.last_step, picture.step) if step is not None]
    return replace(
        fact,
        num_seen=fact.num_seen + 1,
        num_values=fact.num_values + 1,
        kept_bytes=fact.kept_bytes + len(picture.data or b""),
        last_step=max(steps, default=None),
    )


def _thin(connection: Connection, job_name: str, key: tuple[str, str], most: int) -> tuple[int, int]:
    """Drop a tag's surplus pictures; return the number of dropped pictures and bytes."""
    columns = training_pictures.c
    statement = select(columns.id, columns.step, func.coalesce(func.length(columns.data), 0)).where(
        columns.job_name == job_name, columns.kind == key[0], columns.tag == key[1]
    )
    kept = sorted((step or 0, picture_id, size) for picture_id, step, size in connection.execute(statement))
    gone = [kept[place] for place in surplus([step for step, _, _ in kept], most)]
    for ids in _pieces([picture_id for _, picture_id, _ in gone]):
        connection.execute(delete(training_pictures).where(columns.id.in_(ids)))
    return len(gone), sum(size for _, _, size in gone)


def _pieces(ids: Sequence[int]) -> Iterable[Sequence[int]]:
    return (ids[first : first + _IDS_AT_ONCE] for first in range(0, len(ids), _IDS_AT_ONCE))


def _tag_row(job_name: str, fact: TagFacts) -> dict[str, Any]:
    return {
        "job_name": job_name,
        "kind": fact.kind,
        "tag": fact.tag,
        "num_seen": fact.num_seen,
        "num_kept": fact.num_values,
        "kept_bytes": fact.kept_bytes,
        "last_step": fact.last_step,
    }


def _row_of(owner: Mapping[str, Any], picture: Picture) -> dict[str, Any]:
    return {
        **owner,
        "kind": picture.kind,
        "tag": picture.tag,
        "at": to_microseconds(picture.at),
        "step": picture.step,
        "file": picture.file,
        "file_offset": picture.offset,
        "size_bytes": picture.size_bytes,
        "data": picture.data,
    }


def _picture_of(row: Any) -> Picture:
    return Picture(
        kind=row["kind"],
        tag=row["tag"],
        at=from_microseconds(row["at"]),
        step=row["step"],
        file=row["file"],
        offset=row["file_offset"],
        size_bytes=row["size_bytes"],
        data=row.get("data"),
        id=row["id"],
        is_kept=bool(row.get("is_kept", True)),
    )
