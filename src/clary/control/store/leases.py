"""Leases with fencing tokens, for services that share one database.

Where: `Store` runs these functions inside its write transactions. A lease is a row with an owner, an end and a token
that grows with every grant. A store that acts under a lease checks the token in each write transaction (`Fence`), and
refuses all writes once the token is not the newest. So a service whose lease has expired cannot undo its successor's
work. Only the database's clock is read, never that of a service.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, bindparam, select, text, update

from clary.control.store.errors import StaleLease
from clary.control.store.tables import from_microseconds, leases

_CLOCKS = {
    # julianday's resolution of about a millisecond is fine enough for leases; 2440587.5 is the first day of 1970.
    "sqlite": text("SELECT CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000"),
    "postgresql": text("SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS BIGINT)"),
}
# made once, because every transaction of a service runs it
_HOLD = select(leases).where(leases.c.name == bindparam("lease_name")).with_for_update(read=True)
_RELEASED_AT = 0  # an end in the past, so that any service may take the lease
_NOBODY = ""  # owner of a lease that was released while its work goes on


@dataclass(frozen=True, kw_only=True)
class Lease:
    """The exclusive right to the lease's work until `expires_at`, by the database's clock."""

    name: str
    owner: str
    token: int  # larger than the token of every earlier holder
    expires_at: datetime
    # when its former holder took or renewed it last; None for the first lease, and if the former holder's work ended
    former_renewed_at: datetime | None = None


class Fence:
    """Refuses the transactions of a store once another owner has taken its lease.

    Args:
        lease: lease under which the store writes.
        on_loss: called once, on the running event loop, with the first refusal.
    """

    def __init__(self, lease: Lease, on_loss: Callable[[StaleLease], None]) -> None:
        self._lease = lease
        self._on_loss = on_loss
        self._loop = asyncio.get_running_loop()
        self._has_told = False

    def __call__(self, connection: Connection) -> None:
        """Check the lease at the start of a transaction, on the writer's thread. Raises: StaleLease."""
        try:
            require_current(connection, self._lease)
        except StaleLease as stale:
            if not self._has_told:
                self._has_told = True
                with contextlib.suppress(RuntimeError):  # the event loop is closed, so nobody listens
                    self._loop.call_soon_threadsafe(self._on_loss, stale)
            raise


def acquire(
    connection: Connection, name: str, *, owner: str, ttl_s: float, ended: Collection[str] = ()
) -> Lease | None:
    """Take the lease if it is free, expired or held by `owner` or an ended owner; return None if another holds it.

    Each grant has a new token; writes with an older token are refused from then on.

    Args:
        connection: connection in a transaction that the caller commits.
        name: name of the lease.
        owner: id of the process, used by no other process.
        ttl_s: seconds from now, by the database's clock.
        ended: ids of processes that have certainly ended.
    The former holder's last renewal is computed on the assumption that its `ttl_s` was the same.
    """
    now = _database_now(connection)
    expires_at = now + _microseconds(ttl_s)
    row = connection.execute(select(leases).where(leases.c.name == name).with_for_update()).one_or_none()
    if row is None:
        return _grant_first(connection, name, owner=owner, expires_at=expires_at)
    is_readable = isinstance(row.token, int) and isinstance(row.expires_at, int)
    if is_readable and row.owner not in (_NOBODY, owner, *ended) and row.expires_at > now:
        return None
    # An unreadable stored token is replaced by the current time, which is larger than any earlier token.
    token = row.token + 1 if isinstance(row.token, int) else now
    values = {"owner": owner, "token": token, "expires_at": expires_at}
    connection.execute(update(leases).where(leases.c.name == name).values(values))
    return Lease(
        name=name,
        owner=owner,
        token=token,
        expires_at=from_microseconds(expires_at),
        former_renewed_at=_renewal(row.expires_at, ttl_s) if is_readable else None,
    )


def renew(connection: Connection, lease: Lease, *, ttl_s: float) -> Lease:
    """Move the end of a lease to `ttl_s` from now, even if it has expired, unless another owner has taken it.

    Args:
        connection: connection in a transaction that the caller commits.
        lease: as last returned.
        ttl_s: seconds from now, by the database's clock.
    Raises: StaleLease if another owner has taken it.
    """
    require_current(connection, lease)
    expires_at = _database_now(connection) + _microseconds(ttl_s)
    connection.execute(update(leases).where(leases.c.name == lease.name).values(expires_at=expires_at))
    return Lease(name=lease.name, owner=lease.owner, token=lease.token, expires_at=from_microseconds(expires_at))


def release(connection: Connection, lease: Lease, *, renewed_for_s: float = 0.0) -> None:
    """Release a lease; does nothing if another owner has taken it. The row stays, so that tokens keep growing.

    Args:
        connection: connection in a transaction that the caller commits.
        lease: as last returned.
        renewed_for_s: `ttl_s` of a last renewal, of which the next holder learns because the work goes on; 0: it ends.
    """
    values: dict[str, int | str] = {"expires_at": _RELEASED_AT}
    if renewed_for_s:
        values = {"expires_at": _database_now(connection) + _microseconds(renewed_for_s), "owner": _NOBODY}
    connection.execute(update(leases).where(leases.c.name == lease.name, leases.c.token == lease.token).values(values))


def require_current(connection: Connection, lease: Lease) -> None:
    """Lock the lease's row until the transaction ends, so that no other owner takes the lease before the write.

    Raises: StaleLease if the lease's token is not the newest.
    """
    row = connection.execute(_HOLD, {"lease_name": lease.name}).one_or_none()
    if row is None or row.token != lease.token:
        holder = "nobody" if row is None else f"{row.owner!r} with token {row.token}"
        raise StaleLease(
            f"lease {lease.name!r} of {lease.owner!r} with token {lease.token} was taken by {holder}: "
            f"nothing was written; the owner of the lease does this work now, so turn to that service"
        )


def _grant_first(connection: Connection, name: str, *, owner: str, expires_at: int) -> Lease | None:
    first_token = 1
    row = {"name": name, "owner": owner, "token": first_token, "expires_at": expires_at}
    statement = text(
        "INSERT INTO leases (name, owner, token, expires_at) VALUES (:name, :owner, :token, :expires_at) "
        "ON CONFLICT (name) DO NOTHING"
    )
    if connection.execute(statement, row).rowcount == 0:  # another service has just taken it
        return None
    return Lease(name=name, owner=owner, token=first_token, expires_at=from_microseconds(expires_at))


def _renewal(expires_at: int, ttl_s: float) -> datetime | None:
    """Return when a lease with this end was renewed; None if it was released, or if the end is no real time."""
    at = expires_at - _microseconds(ttl_s)
    try:
        return from_microseconds(at) if at > _RELEASED_AT else None
    except OverflowError:  # a damaged row; it decides nothing
        return None


def _database_now(connection: Connection) -> int:
    return int(connection.execute(_CLOCKS[connection.dialect.name]).scalar_one())


def _microseconds(seconds: float) -> int:
    return int(seconds * 1_000_000)
