"""Experiments, trials, trial components and artifacts in the database, with their relations.

Where: `services.experiments` reads and writes them through `Store.experiments`. `associations` holds their lineage,
`component_metrics` the values of components.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, delete, func, insert, select, text, update

from clary.control.store import tokens
from clary.control.store.keyset import after_key
from clary.control.store.series_blocks import Runner
from clary.control.store.tables import (
    associations,
    component_metrics,
    from_microseconds,
    tags,
    to_microseconds,
    tracked,
    trial_members,
)
from clary.control.store.tracking.associations import Associations
from clary.control.store.tracking.component_metrics import ComponentMetrics
from clary.control.store.tracking.experiment_rows import (
    Kind,
    Tracked,
    TrackedExists,
    TrackedInUse,
    TrackedNotFound,
    key_of,
    source_key_of,
    tracked_of,
    values_of,
)

_INSERT = text(
    "INSERT INTO tracked"
    " (kind, name_key, name, arn, parent_key, source_key, label, created_at, modified_at, document)"
    " VALUES (:kind, :name_key, :name, :arn, :parent_key, :source_key, :label, :created_at, :modified_at, :document)"
    " ON CONFLICT (kind, name_key) DO NOTHING"
)
_JOIN = text(
    "INSERT INTO trial_members (trial_key, component_key, joined_at) VALUES (:trial_key, :component_key, :joined_at)"
    " ON CONFLICT (trial_key, component_key) DO NOTHING"
)
_AT_ONCE = 500  # names in one query: databases limit the number of parameters


@dataclass(frozen=True, kw_only=True)
class TrackedQuery:
    """A query of records: filters and order; every filter that is not None must hold. Time bounds are exclusive."""

    kind: Kind
    name: str | None = None
    parent: str | None = None  # of trials: the experiment
    trial: str | None = None  # of components
    experiment: str | None = None  # of components: the experiment that has their trial
    component: str | None = None  # of trials
    source: str | None = None
    label: str | None = None  # of artifacts: the type
    created_after: datetime | None = None
    created_before: datetime | None = None
    by_name: bool = False  # else by creation time
    descending: bool = True

    def identity(self) -> list[Any]:
        """Return the identity of this query; a page token is bound to it."""
        times = [None if at is None else to_microseconds(at) for at in (self.created_after, self.created_before)]
        names = [self.name, self.parent, self.trial, self.experiment, self.component, self.source, self.label]
        return ["tracked", self.kind.value, *names, *times, self.by_name, self.descending]


@dataclass(frozen=True, kw_only=True)
class Parent:
    """A trial that a component belongs to."""

    trial: str
    experiment: str
    joined_at: datetime


class ExperimentStore:
    """Records of experiments; `lineage` and `values` hold their edges and metrics."""

    def __init__(self, *, read: Runner, write: Runner, token_key: bytes) -> None:
        self._read = read
        self._write = write
        self._token_key = token_key
        self.lineage = Associations(read=read, write=write, token_key=token_key)
        self.values = ComponentMetrics(read=read, write=write)

    async def create(
        self, thing: Tracked, new_tags: Mapping[str, str], *, trials: Sequence[str] = (), replaces: bool = False
    ) -> None:
        """Store a new record with its tags.

        Args:
            thing: the record.
            new_tags: tags of the record.
            trials: names of the trials that a component joins.
            replaces: whether to delete a record of the same name first, with its tags, values and edges.

        Raises: TrackedExists; TrackedNotFound for a trial, or for the experiment of a trial. Then nothing is written.
        """

        def put(connection: Connection) -> None:
            if thing.parent:
                _require(connection, Kind.EXPERIMENT, thing.parent)
            if replaces:
                _forget(connection, thing.kind, thing.name)
            if connection.execute(_INSERT, values_of(thing)).rowcount == 0:
                existing = _row(connection, thing.kind, thing.name)
                raise TrackedExists(thing.kind, thing.name, existing_arn="" if existing is None else existing.arn)
            if new_tags:
                rows = [{"arn": thing.arn, "tag_key": key, "tag_value": value} for key, value in new_tags.items()]
                connection.execute(insert(tags), rows)
            for trial in trials:
                _join(connection, trial, thing.name, at=thing.created_at)

        await self._write(put)

    async def get(self, kind: Kind, name: str) -> Tracked | None:
        """Return a record, or None if it does not exist."""
        return await self._read(lambda connection: _row(connection, kind, name))

    async def get_by_arn(self, arn: str) -> Tracked | None:
        """Return a record, or None if it does not exist."""
        statement = select(tracked).where(tracked.c.arn == arn)

        def get(connection: Connection) -> Tracked | None:
            row = connection.execute(statement).one_or_none()
            return None if row is None else tracked_of(row)

        return await self._read(get)

    async def change(self, kind: Kind, name: str, change: Callable[[Tracked], Tracked]) -> Tracked:
        """Read a record, change it and write it back in one transaction; return the stored record.

        Args:
            kind: kind of the record.
            name: name of the record; case does not count.
            change: a pure function, which may run again on a newer state.
        Raises: TrackedNotFound; errors of `change`, and then nothing is written.
        """

        def read_modify_write(connection: Connection) -> Tracked:
            current = _row(connection, kind, name, locks=True)
            if current is None:
                raise TrackedNotFound(kind, name)
            changed = change(current)
            at = (tracked.c.kind == kind.value) & (tracked.c.name_key == current.key)
            connection.execute(update(tracked).where(at).values(**values_of(changed)))
            return changed

        return await self._write(read_modify_write)

    async def remove(self, kind: Kind, name: str) -> Tracked:
        """Delete a record with its tags, values and edges of lineage; return the deleted record.

        Raises: TrackedNotFound; TrackedInUse for an experiment with trials, a trial with components, a component of a
            trial.
        """

        def take(connection: Connection) -> Tracked:
            thing = _require(connection, kind, name)
            users = _users(connection, thing)
            if users:
                raise TrackedInUse(f"{kind.value} {thing.name!r} cannot be deleted: {users}")
            _forget(connection, kind, name)
            return thing

        return await self._write(take)

    async def page(
        self, query: TrackedQuery, *, max_results: int, next_token: str | None
    ) -> tuple[list[Tracked], str | None]:
        """Return one page of records, and the token of the next page or None.

        Args:
            query: filters and order.
            max_results: above 0.
            next_token: token of the previous page of the same query; None for the first page.
        Raises: BadToken; TrackedNotFound for a trial, experiment or component that the query names.
        """
        identity = query.identity()
        after = None if next_token is None else tokens.read_token(self._token_key, next_token, query=identity)
        order: list[ColumnElement[Any]] = [tracked.c.name_key]
        if not query.by_name:
            order.insert(0, tracked.c.created_at)
        statement = _chosen(query).order_by(*(column.desc() if query.descending else column for column in order))
        if after is not None:
            statement = statement.where(after_key(order, after, descending=query.descending))

        def ask(connection: Connection) -> list[Tracked]:
            for kind, name in (
                (Kind.EXPERIMENT, query.parent),
                (Kind.EXPERIMENT, query.experiment),
                (Kind.TRIAL, query.trial),
                (Kind.COMPONENT, query.component),
            ):
                if name is not None:
                    _require(connection, kind, name)
            return [tracked_of(row) for row in connection.execute(statement.limit(max_results + 1))]

        found = await self._read(ask)
        if len(found) <= max_results:
            return found, None
        last = found[max_results - 1]
        position = [last.key] if query.by_name else [to_microseconds(last.created_at), last.key]
        return found[:max_results], tokens.make_token(self._token_key, query=identity, position=position)

    def make_token(self, *, query: Any, position: list[Any]) -> str:
        """Return the token of a page whose records were sorted outside the database."""
        return tokens.make_token(self._token_key, query=query, position=position)

    def read_token(self, token: str, *, query: Any) -> list[Any]:
        """Return the position that `make_token` put into a token; raises BadToken."""
        return tokens.read_token(self._token_key, token, query=query)

    async def all_of(self, query: TrackedQuery) -> list[Tracked]:
        """Return all records of a query, in no particular order."""
        statement = _chosen(query)
        return await self._read(lambda connection: [tracked_of(row) for row in connection.execute(statement)])

    async def join(self, trial: str, component: str, *, at: datetime) -> tuple[Tracked, Tracked]:
        """Add a component to a trial and return both; a repeated call changes nothing.

        Args:
            trial: its name.
            component: its name.
            at: time of joining, stored if the membership is new.
        Raises: TrackedNotFound.
        """

        def put(connection: Connection) -> tuple[Tracked, Tracked]:
            found = _require(connection, Kind.TRIAL, trial), _require(connection, Kind.COMPONENT, component)
            _join(connection, trial, component, at=at)
            return found

        return await self._write(put)

    async def part(self, trial: str, component: str) -> tuple[Tracked, Tracked]:
        """Remove a component from a trial, and return both; raises TrackedNotFound if it is not in the trial."""

        def take(connection: Connection) -> tuple[Tracked, Tracked]:
            found = _require(connection, Kind.TRIAL, trial), _require(connection, Kind.COMPONENT, component)
            at = (trial_members.c.trial_key == key_of(trial)) & (trial_members.c.component_key == key_of(component))
            if connection.execute(delete(trial_members).where(at)).rowcount == 0:
                raise TrackedNotFound(Kind.COMPONENT, f"{component} of trial {trial}")
            return found

        return await self._write(take)

    async def parents_of(self, components: Iterable[str]) -> dict[str, list[Parent]]:
        """Return key of a component -> the trials that it belongs to, oldest membership first."""
        keys = [key_of(name) for name in components]
        at = (tracked.c.kind == Kind.TRIAL.value) & (tracked.c.name_key == trial_members.c.trial_key)
        columns = trial_members.c

        def ask(connection: Connection) -> dict[str, list[Parent]]:
            found: dict[str, list[Parent]] = {}
            for start in range(0, len(keys), _AT_ONCE):
                wanted = columns.component_key.in_(keys[start : start + _AT_ONCE])
                statement = select(tracked, columns.component_key, columns.joined_at).where(at, wanted)
                for row in connection.execute(statement.order_by(columns.joined_at, columns.trial_key)):
                    trial = tracked_of(row)
                    parent = Parent(
                        trial=trial.name, experiment=trial.parent, joined_at=from_microseconds(row.joined_at)
                    )
                    found.setdefault(row.component_key, []).append(parent)
            return found

        return await self._read(ask)

    async def tags_of(self, arns: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return ARN -> its tags, for many resources at once."""

        def ask(connection: Connection) -> dict[str, dict[str, str]]:
            found: dict[str, dict[str, str]] = {}
            for start in range(0, len(arns), _AT_ONCE):
                statement = select(tags).where(tags.c.arn.in_(arns[start : start + _AT_ONCE])).order_by(tags.c.tag_key)
                for row in connection.execute(statement):
                    found.setdefault(row.arn, {})[row.tag_key] = row.tag_value
            return found

        return await self._read(ask)


def _row(connection: Connection, kind: Kind, name: str, *, locks: bool = False) -> Tracked | None:
    statement = select(tracked).where(tracked.c.kind == kind.value, tracked.c.name_key == key_of(name))
    row = connection.execute(statement.with_for_update() if locks else statement).one_or_none()
    return None if row is None else tracked_of(row)


def _require(connection: Connection, kind: Kind, name: str) -> Tracked:
    found = _row(connection, kind, name)
    if found is None:
        raise TrackedNotFound(kind, name)
    return found


def _join(connection: Connection, trial: str, component: str, *, at: datetime) -> None:
    _require(connection, Kind.TRIAL, trial)
    row = {"trial_key": key_of(trial), "component_key": key_of(component), "joined_at": to_microseconds(at)}
    connection.execute(_JOIN, row)


def _users(connection: Connection, thing: Tracked) -> str:
    """Return a sentence on how many records depend on a record, with the remedy; empty if no record does."""
    match thing.kind:
        case Kind.EXPERIMENT:
            belongs = (tracked.c.kind == Kind.TRIAL.value) & (tracked.c.parent_key == thing.key)
            count = connection.execute(select(func.count()).select_from(tracked).where(belongs)).scalar_one()
            return f"it has {count} trial(s), delete those first" if count else ""
        case Kind.TRIAL | Kind.COMPONENT:
            column = trial_members.c.trial_key if thing.kind is Kind.TRIAL else trial_members.c.component_key
            statement = select(func.count()).select_from(trial_members).where(column == thing.key)
            count = connection.execute(statement).scalar_one()
            others = "trial component(s)" if thing.kind is Kind.TRIAL else "trial(s)"
            return f"it is associated with {count} {others}, disassociate those first" if count else ""
        case Kind.ARTIFACT:
            return ""


def _forget(connection: Connection, kind: Kind, name: str) -> None:
    """Remove a record with its tags and edges; do nothing if it does not exist.

    A component's values and memberships are deleted, too.
    """
    thing = _row(connection, kind, name)
    if thing is None:
        return
    if kind is Kind.COMPONENT:
        connection.execute(delete(trial_members).where(trial_members.c.component_key == thing.key))
        connection.execute(delete(component_metrics).where(component_metrics.c.component_key == thing.key))
    edges = (associations.c.source_arn == thing.arn) | (associations.c.destination_arn == thing.arn)
    connection.execute(delete(associations).where(edges))
    connection.execute(delete(tags).where(tags.c.arn == thing.arn))
    connection.execute(delete(tracked).where(tracked.c.kind == kind.value, tracked.c.name_key == thing.key))


def _chosen(query: TrackedQuery) -> Select[Any]:
    columns = tracked.c
    statement = select(tracked).where(columns.kind == query.kind.value)
    for column, value in (
        (columns.name_key, None if query.name is None else key_of(query.name)),
        (columns.parent_key, None if query.parent is None else key_of(query.parent)),
        (columns.source_key, None if query.source is None else source_key_of(query.kind, query.source)),
        (columns.label, query.label),
    ):
        if value is not None:
            statement = statement.where(column == value)
    members = trial_members.c
    if query.trial is not None:
        inside = select(members.component_key).where(members.trial_key == key_of(query.trial))
        statement = statement.where(columns.name_key.in_(inside))
    if query.component is not None:
        around = select(members.trial_key).where(members.component_key == key_of(query.component))
        statement = statement.where(columns.name_key.in_(around))
    if query.experiment is not None:
        trial = tracked.alias()
        of_it = (trial.c.kind == Kind.TRIAL.value) & (trial.c.parent_key == key_of(query.experiment))
        inside = select(members.component_key).where(of_it, members.trial_key == trial.c.name_key)
        statement = statement.where(columns.name_key.in_(inside))
    if query.created_after is not None:
        statement = statement.where(columns.created_at > to_microseconds(query.created_after))
    if query.created_before is not None:
        statement = statement.where(columns.created_at < to_microseconds(query.created_before))
    return statement
