"""JSON documents that belong to a job and a number, such as the request of a dump and the answers of its hosts.

Where: the modules of `reconcile.desks` store requests of users and answers of hosts here; one object serves one kind of
documents. Rows are deleted with their job; all documents of a number are deleted together.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from sqlalchemy import Connection, Row, and_, delete, select, text

from clary.base.errors import ContractError
from clary.base.plain import from_plain
from clary.control.store.damage import readable
from clary.control.store.errors import JobNotFound
from clary.control.store.series_blocks import Runner
from clary.control.store.tables import jobs, numbered_documents

REQUEST = "request"  # name of a number's first document; the documents of hosts have the hosts' names

T = TypeVar("T")

_NUMBERS = 1 << 63  # largest BIGINT
_SET = text(
    "INSERT INTO numbered_documents (job_name, kind, number, name, document)"
    " VALUES (:job_name, :kind, :number, :name, :document)"
    " ON CONFLICT (job_name, kind, number, name) DO UPDATE SET document = excluded.document"
)
_COLUMNS = numbered_documents.c


class NumberedDocuments:
    """Documents of one kind in the database; `Store.documents` makes them.

    A row that is not JSON is set aside, and counts as missing. Every call raises StoreError if the database fails.
    """

    def __init__(self, kind: str, *, read: Runner, write: Runner) -> None:
        self._kind = kind
        self._read = read
        self._write = write

    async def put(
        self, job_name: str, number: int, documents: Mapping[str, object], *, keep: int | None = None
    ) -> None:
        """Write documents of a number in one transaction; each replaces the document of its name.

        Args:
            job_name: a stored job.
            number: at least 0.
            documents: name -> JSON value.
            keep: how many of the job's newest numbers stay; None keeps all. `number` stays in any case.
        Raises: JobNotFound.
        """
        key = {"job_name": job_name, "kind": self._kind, "number": number}
        rows = [{**key, "name": name, "document": json.dumps(value)} for name, value in sorted(documents.items())]

        def put(connection: Connection) -> None:
            # Lock the job against deletion until the rows are written; SQLite has only one writer anyway.
            holds = select(jobs.c.name).where(jobs.c.name == job_name).with_for_update(read=True, key_share=True)
            if connection.execute(holds).scalar() is None:
                raise JobNotFound(job_name)
            connection.execute(_SET, rows)
            for old in [] if keep is None else self._numbers(connection, job_name)[keep:]:
                if old != number:
                    connection.execute(delete(numbered_documents).where(*self._at(job_name, old)))

        await self._write(put)

    async def numbers(self, job_name: str) -> list[int]:
        """Return the numbers with documents, the newest first."""
        return await self._read(lambda connection: self._numbers(connection, job_name))

    async def read(self, job_name: str, number: int) -> dict[str, Any]:
        """Return the documents of a number by name; empty if it has no documents."""
        return {name: value for _, _, name, value in await self._documents(*self._at(job_name, number))}

    async def read_one(self, job_name: str, number: int, name: str) -> Any | None:
        """Return one document, or None if it does not exist.

        Args:
            job_name: name of any job.
            number: any integer; a number outside of the range of BIGINT has no documents.
            name: name of the document.
        """
        found = await self._documents(*self._at(job_name, number), _COLUMNS.name == name)
        return found[0][3] if found else None

    async def read_named(self, name: str, *, without: str = "") -> list[tuple[str, int, Any]]:
        """Return job, number and document for every document with a given name, sorted by job and number.

        Numbers with a document called `without` are left out.
        """
        other = numbered_documents.alias()
        same = and_(*(other.c[key] == _COLUMNS[key] for key in ("job_name", "kind", "number")))
        is_over = select(other.c.id).where(same, other.c.name == without).exists()
        found = await self._documents(_COLUMNS.kind == self._kind, _COLUMNS.name == name, ~is_over)
        return [(job_name, number, value) for job_name, number, _, value in found]

    async def names(self, job_name: str, number: int) -> list[str]:
        """Return the names of a number's documents, in order; reads no document."""
        statement = select(_COLUMNS.name).where(*self._at(job_name, number)).order_by(_COLUMNS.name)
        return await self._read(lambda connection: list(connection.execute(statement).scalars()))

    async def remove(self, job_name: str, number: int | None = None) -> None:
        """Remove the documents of a number, or all documents of a job."""
        mine = (_COLUMNS.job_name == job_name, _COLUMNS.kind == self._kind)
        statement = delete(numbered_documents).where(*(mine if number is None else self._at(job_name, number)))
        await self._write(lambda connection: connection.execute(statement))

    async def _documents(self, *conditions: Any) -> list[tuple[str, int, str, Any]]:
        columns = (_COLUMNS.id, _COLUMNS.job_name, _COLUMNS.number, _COLUMNS.name, _COLUMNS.document)
        statement = select(*columns).where(*conditions).order_by(*columns[1:4])

        def find(connection: Connection) -> list[tuple[str, int, str, Any]]:
            rows = connection.execute(statement)
            return readable(rows, _parsed, table=numbered_documents, key=lambda row: {"id": row.id})

        return await self._read(find)

    def _at(self, job_name: str, number: int) -> tuple[Any, ...]:
        known = number if 0 <= number < _NUMBERS else -1  # agents may send any number
        return _COLUMNS.job_name == job_name, _COLUMNS.kind == self._kind, _COLUMNS.number == known

    def _numbers(self, connection: Connection, job_name: str) -> list[int]:
        mine = (_COLUMNS.job_name == job_name, _COLUMNS.kind == self._kind)
        statement = select(_COLUMNS.number).distinct().where(*mine).order_by(_COLUMNS.number.desc())
        return list(connection.execute(statement).scalars())


def built(cls: type[T], document: object | None) -> T | None:
    """Return a document as a dataclass; None if there is no document, or another release wrote it."""
    try:
        return None if document is None else from_plain(cls, document)
    except ContractError:
        return None


def _parsed(row: Row[Any]) -> tuple[str, int, str, Any]:
    return row.job_name, row.number, row.name, json.loads(row.document)
