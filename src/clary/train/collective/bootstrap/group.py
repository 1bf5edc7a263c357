"""Forms a group: makes the sockets and the shared memory of its ranks, which meet through a store.

Where: `communicator.open_group`, the torch adapter and `streams` call `connect_group` on every rank of a group.

1. Rank 0 puts a random id of this attempt (`generation`) into the store, and a secret unless the job has one
   (`records.Root`).
2. Every rank listens, publishes its record, and reads all other ranks' records, which show the ranks of one host.
3. Sockets are made and authenticated (`meeting`, `handshake`).
4. The first rank of a host makes the shared memory; every rank notifies all others that it is ready (`words`).
5. Listeners are closed, records deleted.

All steps have one limit, CLARY_COLLECTIVE_CONNECT_TIMEOUT_S. A rank that fails writes the reason into its record;
before it has reported that it is ready, it also sends the reason to its connected ranks. Trust: without
CLARY_COLLECTIVE_SECRET, every reader of the store can join the group, and every writer can misdirect ranks.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from dataclasses import replace

from clary.train._native.errors import BootstrapError
from clary.train._native.interface import GroupConnections
from clary.train.collective.bootstrap.deadline import Deadline
from clary.train.collective.bootstrap.handshake import Credentials, Role
from clary.train.collective.bootstrap.hosts import host_identity, host_name, own_address
from clary.train.collective.bootstrap.listeners import Listeners, open_listeners
from clary.train.collective.bootstrap.meeting import Meeting, Need
from clary.train.collective.bootstrap.records import (
    Document,
    Layout,
    RankRecord,
    Root,
    Terms,
    check_agreement,
    decode,
    encode,
    layout_of,
)
from clary.train.collective.bootstrap.segment import check_segment, create_segment, segment_bytes
from clary.train.collective.bootstrap.store import Store
from clary.train.collective.bootstrap.words import GaveUp, await_ready, cause_of, say_farewell, say_ready
from clary.train.collective.cores import core_kind
from clary.train.collective.settings import CollectiveSettings

MAX_NAME_CHARACTERS = 500
_GENERATION_BYTES = 16
_SECRET_BYTES = 32
_MAX_FAREWELL_CHARACTERS = 1000


def connect_group(
    store: Store | None, *, rank: int, size: int, group_name: str, settings: CollectiveSettings
) -> GroupConnections:
    """Connect this rank with all other ranks of a group. Every rank calls it with the same name and size.

    Args:
        store: store that all ranks can reach; may be None for a group of one rank.
        group_name: unique name of this attempt, since a store may keep the records of earlier attempts.

    Returns: the group's connections, with non-blocking sockets; the caller owns them, and may pass them to a core.
    Raises:
        ValueError: rank, size or name is invalid.
        BootstrapError: names the ranks that did not join, were not reachable or failed to authenticate, and the remedy.
        No descriptor is left open.
    """
    if size < 1 or not 0 <= rank < size:
        raise ValueError(f"rank {rank} of {size}: expected a size of at least 1 and a rank in 0..size-1")
    if not 0 < len(group_name) <= MAX_NAME_CHARACTERS:
        raise ValueError(f"a group's name has 1 to {MAX_NAME_CHARACTERS} characters, got {len(group_name)}")
    if size == 1:
        layout = Layout((0,), (host_name(settings),))
        return _connections(group_name, 0, layout, settings, sockets={}, segment_fd=-1)
    if store is None:
        raise ValueError(f"group {group_name!r} of {size} ranks needs a store through which they find each other")
    forming = _Forming(store, rank=rank, size=size, group_name=group_name, settings=settings)
    try:
        connections = forming.run()
    except BaseException as error:
        forming.leave_word(f"{type(error).__name__}: {error}")
        raise
    finally:
        forming.close_listeners()
    forming.delete_records()
    return connections


class _Forming:
    """One rank's attempt to form a group."""

    def __init__(self, store: Store, *, rank: int, size: int, group_name: str, settings: CollectiveSettings) -> None:
        self._store = store
        self._rank = rank
        self._size = size
        self._name = group_name
        self._settings = settings
        self._deadline = Deadline(settings.connect_timeout_s)
        self._listeners: Listeners | None = None
        self._generation = ""
        self._core = ""
        self._is_ready = False  # READY was sent: peers may have passed the sockets to their cores
        self._own_keys: list[str] = []

    def run(self) -> GroupConnections:
        """Run all steps except the last."""
        credentials = self._agree_on_credentials()
        self._core = core_kind(self._settings)
        self._listeners = open_listeners(own_address(self._settings), self._size, congestion=self._settings.congestion)
        record = self._own_record()
        self._publish(str(self._rank), record)
        records = self._read_records(record)
        layout = layout_of(records)
        meeting = Meeting(
            credentials,
            rank=self._rank,
            records=records,
            layout=layout,
            listeners=self._listeners,
            deadline=self._deadline,
        )
        try:
            meeting.run()
            segment_fd = self._share(meeting.sockets, layout)
        except BaseException as error:
            if isinstance(error, BootstrapError) and not self._is_ready:
                say_farewell(_sides(meeting.sockets), str(error))
            for sock in meeting.sockets.values():
                sock.close()
            raise
        return _connections(
            self._name, self._rank, layout, self._settings, sockets=meeting.sockets, segment_fd=segment_fd
        )

    def leave_word(self, words: str) -> None:
        """Write the reason for giving up into this rank's record, which other ranks may still wait for."""
        if self._generation:
            record = replace(self._own_record(), farewell=words[:_MAX_FAREWELL_CHARACTERS])
            with contextlib.suppress(BootstrapError):  # the store itself may have failed
                self._publish(str(self._rank), record)

    def close_listeners(self) -> None:
        """Accept no more connections."""
        if self._listeners is not None:
            self._listeners.close()

    def delete_records(self) -> None:
        """Delete this rank's records in the store; all ranks have read them, since all are ready."""
        for key in self._own_keys:
            with contextlib.suppress(OSError, RuntimeError):  # rank 0 may have closed the store already
                self._store.delete(key)

    def _agree_on_credentials(self) -> Credentials:
        own_secret = self._settings.secret
        if self._rank == 0:
            root = Root(secrets.token_hex(_GENERATION_BYTES), "" if own_secret else secrets.token_hex(_SECRET_BYTES))
            self._publish("root", root)
        else:
            try:
                root = self._fetch(Root, "root")
            except TimeoutError:
                raise self._not_come([0]) from None
        self._generation = root.generation
        if bool(root.secret) == bool(own_secret):
            has, lacks = (self._rank, 0) if own_secret else (0, self._rank)
            raise BootstrapError(
                f"{self._words()}: rank {has} has CLARY_COLLECTIVE_SECRET, rank {lacks} has not: set it on all ranks "
                f"or on none",
                culprit=lacks,
                retryable=False,
            )
        return Credentials((own_secret or root.secret).encode(), self._name, root.generation)

    def _own_record(self) -> RankRecord:
        settings, listeners = self._settings, self._listeners
        address, port = listeners.place if listeners else ("no address yet", 0)
        return RankRecord(
            rank=self._rank,
            identity=host_identity(settings, self._rank),
            host=host_name(settings),
            pid=os.getpid(),
            address=address,
            port=port,
            unix_name=listeners.unix_name if listeners else "",
            generation=self._generation,
            terms=Terms(
                size=self._size,
                core=self._core,
                slot_bytes=settings.slot_bytes,
                link_latency_s=settings.link.latency_s,
                link_bytes_per_s=settings.link.bytes_per_s,
                algorithm=settings.algorithm,
            ),
        )

    def _read_records(self, own: RankRecord) -> list[RankRecord]:
        """Wait until the records of all ranks exist, check that they agree, and return them by rank."""
        records = {self._rank: own}
        for rank in range(self._size):
            with contextlib.suppress(TimeoutError):  # after the limit, each other record is read without waiting
                record = records[rank] = self._fetch(RankRecord, str(rank))
                if record.farewell or record.terms != own.terms or record.generation != own.generation:
                    check_agreement(self._name, records, own.generation)
        if missing := [rank for rank in range(self._size) if rank not in records]:
            raise self._not_come(missing, came=[records[rank] for rank in sorted(records)])
        check_agreement(self._name, records, own.generation)
        return [records[rank] for rank in range(self._size)]

    def _share(self, sockets: dict[Need, socket.socket], layout: Layout) -> int:
        """Make or receive this host's memory, and wait until all ranks are ready; return its descriptor, or -1."""
        mates = layout.ranks_of(layout.host_of_rank[self._rank])
        leader, is_shared = mates[0], len(mates) > 1
        num_bytes = segment_bytes(len(mates), self._settings.slot_bytes)
        sides = _sides(sockets)
        segment_fd = -1
        try:
            if is_shared and leader == self._rank:
                segment_fd = self._create_segment(num_bytes)
            self._is_ready = True
            say_ready(sides, segment_fd=segment_fd, host_mates=frozenset(mates))
            received = await_ready(
                sides, leader=leader if is_shared and leader != self._rank else None, deadline=self._deadline
            )
            if received >= 0:
                segment_fd = received
                check_segment(segment_fd, num_bytes, leader=leader)
        except BaseException as error:
            if segment_fd >= 0:
                os.close(segment_fd)
            if isinstance(error, GaveUp):
                peer, words = cause_of(sides, error.peer, str(error))
                raise BootstrapError(
                    f"{self._words()}: {layout.describe(peer)} gave up: {words}", culprit=peer
                ) from error
            if isinstance(error, TimeoutError):
                late = ", ".join(map(layout.describe, error.args[0]))
                raise BootstrapError(
                    f"{self._words()}: connected, but did not report that they are ready: {late}. Are they "
                    "stopped, or still connecting to others?",
                    culprit=error.args[0][0],
                ) from error
            raise
        return segment_fd

    def _create_segment(self, num_bytes: int) -> int:
        try:
            return create_segment(num_bytes)
        except OSError as error:
            raise BootstrapError(
                f"{self._words()}: rank {self._rank} cannot make {num_bytes} bytes of shared memory: {error.strerror}",
                culprit=self._rank,
            ) from error

    def _publish(self, name: str, document: RankRecord | Root) -> None:
        self._own_keys.append(self._key(name))
        try:
            self._store.set(self._key(name), encode(document))
        except (OSError, RuntimeError) as error:
            raise self._store_failed(error) from error

    def _fetch(self, kind: type[Document], name: str) -> Document:
        """Wait until a document exists and read it; raises TimeoutError after the limit."""
        try:
            value = self._store.get(self._key(name), self._deadline.remaining_s)
        except TimeoutError:
            raise
        except (OSError, RuntimeError) as error:
            raise self._store_failed(error) from error
        return decode(kind, value, key=self._key(name))

    def _store_failed(self, error: Exception) -> BootstrapError:
        return BootstrapError(
            f"{self._words()}: its store failed: {error}; does rank 0 still run, and can this host reach it?", culprit=0
        )

    def _key(self, name: str) -> str:
        return f"{self._name}/{name}"

    def _words(self) -> str:
        return f"group {self._name!r} was not formed after {self._deadline.elapsed_s:.1f} s"

    def _not_come(self, missing: list[int], came: list[RankRecord] | None = None) -> BootstrapError:
        names = ", ".join(map(str, missing))
        here = f" Came: {'; '.join(record.in_words for record in came)}." if came else ""
        return BootstrapError(
            f"{self._words()}, the limit being {self._deadline.limit_s:g} s: {len(missing)} of {self._size} ranks did "
            f"not come: {names}.{here} This is rank {self._rank} on {host_name(self._settings)}. Check that these "
            f"ranks were started with the same size and group name and reach the same store, and what their logs say; "
            f"CLARY_COLLECTIVE_CONNECT_TIMEOUT_S is the limit",
            culprit=missing[0],
        )


def _sides(sockets: dict[Need, socket.socket]) -> dict[int, socket.socket]:
    return {need.peer: sock for need, sock in sockets.items() if need.role is Role.SIDE}


def _connections(
    name: str,
    rank: int,
    layout: Layout,
    settings: CollectiveSettings,
    *,
    sockets: dict[Need, socket.socket],
    segment_fd: int,
) -> GroupConnections:
    """Return the connections for a core, which will own the sockets' descriptors."""
    descriptors = {need: sock.detach() for need, sock in sockets.items()}
    ranks = range(len(layout.host_of_rank))
    mates = layout.ranks_of(layout.host_of_rank[rank])
    return GroupConnections(
        name=name,
        rank=rank,
        size=len(ranks),
        host_of_rank=layout.host_of_rank,
        host_names=layout.host_names,
        segment_fd=segment_fd,
        segment_bytes=segment_bytes(len(mates), settings.slot_bytes) if segment_fd >= 0 else 0,
        slot_bytes=settings.slot_bytes,
        lane_fds=tuple(descriptors.get(Need(peer, Role.LANE), -1) for peer in ranks),
        side_fds=tuple(descriptors.get(Need(peer, Role.SIDE), -1) for peer in ranks),
        timeout_s=settings.timeout_s,
        link_latency_s=settings.link.latency_s,
        link_bytes_per_s=settings.link.bytes_per_s,
        algorithm=settings.algorithm,
    )
