"""Lineage: edges between artifacts and trial components in the database."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, delete, insert, select

from clary.control.store import tokens
from clary.control.store.keyset import after_key
from clary.control.store.series_blocks import Runner
from clary.control.store.tables import associations, from_microseconds, to_microseconds
from clary.control.store.tracking.experiment_rows import Association


class EdgeOrder(StrEnum):
    """Sort order of edges; the value is the column."""

    SOURCE_ARN = "source_arn"
    DESTINATION_ARN = "destination_arn"
    SOURCE_TYPE = "source_type"
    DESTINATION_TYPE = "destination_type"
    CREATION_TIME = "created_at"


@dataclass(frozen=True, kw_only=True)
class EdgeQuery:
    """A query of edges: filters and order; every filter that is not None must hold. Time bounds are exclusive."""

    source_arn: str | None = None
    destination_arn: str | None = None
    source_type: str | None = None
    destination_type: str | None = None
    association_type: str | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None
    order: EdgeOrder = EdgeOrder.CREATION_TIME
    descending: bool = True

    def equals(self) -> dict[str, str | None]:
        """Return column -> required value; None for any value."""
        return {
            "source_arn": self.source_arn,
            "destination_arn": self.destination_arn,
            "source_type": self.source_type,
            "destination_type": self.destination_type,
            "association_type": self.association_type,
        }

    def identity(self) -> list[Any]:
        """Return the identity of this query; a page token is bound to it."""
        times = [None if at is None else to_microseconds(at) for at in (self.created_after, self.created_before)]
        return ["associations", *self.equals().values(), *times, self.order.value, self.descending]


class Associations:
    """Edges of a database, as `ExperimentStore.lineage`."""

    def __init__(self, *, read: Runner, write: Runner, token_key: bytes) -> None:
        self._read = read
        self._write = write
        self._token_key = token_key

    async def add(self, edge: Association) -> bool:
        """Store an edge; if its source and destination already have one, change nothing and return False."""

        def put(connection: Connection) -> bool:
            if connection.execute(select(associations.c.source_arn).where(_between(edge))).one_or_none() is not None:
                return False
            row = {name: getattr(edge, name) for name in associations.c.keys() if name != "created_at"}  # noqa: SIM118
            connection.execute(insert(associations), {**row, "created_at": to_microseconds(edge.created_at)})
            return True

        return await self._write(put)

    async def remove(self, source_arn: str, destination_arn: str) -> bool:
        """Remove an edge; return False if it does not exist."""
        columns = associations.c
        at = (columns.source_arn == source_arn) & (columns.destination_arn == destination_arn)
        return await self._write(lambda connection: connection.execute(delete(associations).where(at)).rowcount > 0)

    async def page(
        self, query: EdgeQuery, *, max_results: int, next_token: str | None
    ) -> tuple[list[Association], str | None]:
        """Return one page of edges, and the token of the next page or None. Raises BadToken.

        Args:
            query: filters and order.
            max_results: above 0.
            next_token: token of the previous page of the same query; None for the first page.
        """
        columns = associations.c
        identity = query.identity()
        order: list[ColumnElement[Any]] = [columns[query.order.value], columns.source_arn, columns.destination_arn]
        statement = select(associations).order_by(*(column.desc() if query.descending else column for column in order))
        for name, value in query.equals().items():
            if value is not None:
                statement = statement.where(columns[name] == value)
        if query.created_after is not None:
            statement = statement.where(columns.created_at > to_microseconds(query.created_after))
        if query.created_before is not None:
            statement = statement.where(columns.created_at < to_microseconds(query.created_before))
        if next_token is not None:
            after = tokens.read_token(self._token_key, next_token, query=identity)
            statement = statement.where(after_key(order, after, descending=query.descending))

        def ask(connection: Connection) -> tuple[list[Association], str | None]:
            rows = connection.execute(statement.limit(max_results + 1)).all()
            token = None
            if len(rows) > max_results:
                rows = rows[:max_results]
                position = [rows[-1]._mapping[query.order.value], rows[-1].source_arn, rows[-1].destination_arn]
                token = tokens.make_token(self._token_key, query=identity, position=position)
            return [_edge_of(row) for row in rows], token

        return await self._read(ask)


def _between(edge: Association) -> ColumnElement[bool]:
    columns = associations.c
    return (columns.source_arn == edge.source_arn) & (columns.destination_arn == edge.destination_arn)


def _edge_of(row: Row[Any]) -> Association:
    return Association(**{**row._mapping, "created_at": from_microseconds(row.created_at)})
