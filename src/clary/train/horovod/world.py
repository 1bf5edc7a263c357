"""The Horovod state of this process: its place, the engine of each process set, start and end.

Where: all functions of a framework module (such as `horovod.torch`), except those on tensors, call this module. One
process is one rank.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import logging
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from clary.train._native.errors import CollectiveError
from clary.train.collective.bootstrap.hosts import host_identity
from clary.train.collective.bootstrap.tcp_store import TcpStore
from clary.train.collective.communicator import Communicator, open_group
from clary.train.collective.settings import CollectiveSettings
from clary.train.horovod.engine import Engine
from clary.train.horovod.errors import HorovodInternalError
from clary.train.horovod.places import Layout, Place, layout_of, place_from
from clary.train.horovod.requests import Description, Request, Verb
from clary.train.horovod.settings import HorovodSettings, without_effect
from clary.train.horovod.timeline import Timeline
from clary.train.rank_variables import with_ranks_of_mpirun

GLOBAL_SET = 0
_IDENTITY_BYTES = 64
_LOG = logging.getLogger("horovod")
_LOCK = threading.Lock()


@dataclass
class _World:
    """The state between `start` and `stop`."""

    place: Place
    layout: Layout
    settings: HorovodSettings
    group: Communicator
    hosts: tuple[str, ...]
    allows_new_sets: bool
    ranks: dict[int, tuple[int, ...]] = field(default_factory=dict)
    engines: dict[int, Engine] = field(default_factory=dict)
    next_set: int = 1
    pid: int = field(default_factory=os.getpid)


_world: _World | None = None
_store: TcpStore | None = None  # kept open: a new start must not connect to a closing store
_store_place: Place | None = None
_store_pid = 0
_num_starts = 0
_has_exit_hook = False


def own_place() -> Place:
    """Return the place that the launcher gave this process. Raises: ValueError, as `places.place_from`."""
    return place_from(with_ranks_of_mpirun(os.environ))


def start(members: Sequence[int] | None = None, *, allows_new_sets: bool = False) -> None:
    """Form the group of all ranks. A second call while it exists does nothing.

    Args:
        members: launcher ranks that form the world, in this order; None for all.
        allows_new_sets: whether `add_set` may be called later; HOROVOD_DYNAMIC_PROCESS_SETS=1 allows it too.

    Raises: ValueError for wrong variables or a rank that is not in `members`; HorovodInternalError naming the ranks
        that did not connect.
    """
    global _world, _num_starts, _has_exit_hook
    with _LOCK:
        if _world is not None:
            return
        settings = HorovodSettings.from_environment(os.environ)
        _LOG.setLevel(settings.log_level)
        place = _among(own_place(), members)
        _num_starts += 1
        try:
            _world = _form(place, settings, f"horovod.{_num_starts}", allows_new_sets)
        except CollectiveError as error:
            raise HorovodInternalError(
                f"rank {place.rank} of {place.size} could not form the group: {error}"
            ) from error
        if place.rank == 0:
            for sentence in without_effect(os.environ):
                _LOG.warning(sentence)
        if not _has_exit_hook:
            atexit.register(_leave)
            _has_exit_hook = True
    if settings.timeline and place.rank == 0:
        try:
            start_timeline(settings.timeline, marks_cycles=settings.marks_cycles)
        except OSError as error:  # a timeline that cannot be written must not end the training
            _LOG.warning("no timeline is written to HOROVOD_TIMELINE=%s: %s", settings.timeline, error)


def stop() -> None:
    """Leave the group. Operations under way fail, here and on the other ranks. A second call does nothing."""
    global _world
    with _LOCK:
        world, _world = _world, None
    if world is None or world.pid != os.getpid():
        return
    for number in sorted(world.engines, reverse=True):
        with contextlib.suppress(CollectiveError):
            world.engines[number].close("Horovod has been shut down on this rank")


def is_started() -> bool:
    """Return whether the group exists."""
    return _world is not None


def rank() -> int:
    """Return this process's rank. Raises: ValueError before `start`."""
    return _standing().place.rank


def size() -> int:
    """Return the number of ranks. Raises: ValueError before `start`."""
    return _standing().place.size


def layout() -> Layout:
    """Return this process's place among hosts. Raises: ValueError before `start`."""
    return _standing().layout


def ranks_of(number: int) -> tuple[int, ...]:
    """Return the global ranks of a process set. Raises: ValueError before `start` and for an unknown set."""
    ranks = _standing().ranks.get(number)
    if ranks is None:
        raise ValueError(f"process set {number} does not exist: add it with init or add_process_set")
    return ranks


def set_ranks() -> dict[int, list[int]]:
    """Return the ranks of each process set by its number."""
    return {number: list(ranks) for number, ranks in _standing().ranks.items()}


def engine(number: int = GLOBAL_SET) -> Engine:
    """Return the engine of a process set. Raises: ValueError before `start`, and if this rank is not in the set."""
    found = _standing().engines.get(number)
    if found is None:
        ranks = ranks_of(number)
        raise ValueError(f"rank {rank()} is not in process set {number}, which has ranks {list(ranks)}")
    return found


def add_set(ranks: Sequence[int], *, is_at_start: bool) -> int | None:
    """Form a process set. All ranks call this with the same ranks.

    Returns: the number of the set; None if a set of these ranks exists.
    Raises: ValueError for unknown ranks, or if new sets are not allowed; HorovodInternalError if ranks pass different
        arguments.
    """
    world = _standing()
    members = tuple(sorted(ranks))
    if not is_at_start and not world.allows_new_sets:
        raise ValueError(
            "process sets cannot be added later: call init(process_sets='dynamic'), or set "
            "HOROVOD_DYNAMIC_PROCESS_SETS=1"
        )
    if not members or members[0] < 0 or members[-1] >= world.place.size or len(set(members)) != len(members):
        raise ValueError(f"process set {list(ranks)}: expected distinct ranks from 0 to {world.place.size - 1}")
    if members in world.ranks.values():
        return None
    _agree(world, Description(Verb.ADD_PROCESS_SET, details=members))
    return next(number for number, found in world.ranks.items() if found == members)


def remove_set(number: int) -> bool:
    """Dissolve a process set; return whether it existed. All ranks call this."""
    world = _standing()
    if number not in world.ranks or number == GLOBAL_SET:
        return False
    _agree(world, Description(Verb.REMOVE_PROCESS_SET, details=(number,)))
    return True


def start_timeline(path: str, *, marks_cycles: bool) -> None:
    """Start a timeline on rank 0; end the current one first.

    Raises: ValueError before `start`; OSError if the file cannot be written.
    """
    stop_timeline()
    if rank() == 0:
        engine().timeline = Timeline(path, marks_cycles=marks_cycles)


def stop_timeline() -> None:
    """End the timeline, if one is running. Raises: ValueError before `start`."""
    found = engine()
    timeline, found.timeline = found.timeline, None
    if timeline is not None:
        timeline.close()


def _standing() -> _World:
    if _world is None:
        raise ValueError("Horovod has not been initialized; use hvd.init().")
    return _world


def _among(place: Place, members: Sequence[int] | None) -> Place:
    """Return the process's place in a world of `members`, or of all ranks if `members` is empty."""
    if not members:
        return place
    if place.rank not in members:
        raise ValueError(f"rank {place.rank} is not in comm={list(members)}: call init on its ranks alone")
    return replace(place, rank=list(members).index(place.rank), size=len(members))


def _form(place: Place, settings: HorovodSettings, name: str, allows_new_sets: bool) -> _World:
    given = CollectiveSettings.from_environment(os.environ)
    collective = replace(given, timeout_s=settings.timeout_s, interface=given.interface or settings.interface)
    group = open_group(
        _store_of(place, collective), rank=place.rank, size=place.size, group_name=name, settings=collective
    )
    try:
        hosts = _tell_hosts(group, _own_identity(place, collective))
    except BaseException:
        group.close()
        raise
    world = _World(
        place=place,
        layout=layout_of(hosts, place.rank),
        settings=settings,
        group=group,
        hosts=hosts,
        allows_new_sets=allows_new_sets or settings.has_dynamic_sets,
    )
    world.ranks[GLOBAL_SET] = tuple(range(place.size))
    world.engines[GLOBAL_SET] = Engine(
        group,
        ranks=world.ranks[GLOBAL_SET],
        settings=settings,
        is_single_host=len(set(hosts)) == 1,
        on_special=lambda description: _change_sets(world, description),
    )
    return world


def _store_of(place: Place, settings: CollectiveSettings) -> TcpStore | None:
    """Return the store of this process, opened at the first start; None with a single rank."""
    global _store, _store_place, _store_pid
    if place.size == 1:
        return None
    if _store is not None and _store_place != place:
        _store.close()
        _store = None
    if _store is None:
        _store = TcpStore(
            place.address,
            place.port,
            rank=place.rank,
            secret=settings.secret,
            timeout_s=settings.connect_timeout_s,
        )
        _store_place, _store_pid = place, os.getpid()
    return _store


def _leave() -> None:
    """Leave the group and the store, at the end of the process."""
    stop()
    if _store is not None and _store_pid == os.getpid():
        _store.close()


def _own_identity(place: Place, settings: CollectiveSettings) -> str:
    """Return a text that is equal only for ranks of the same host; hosts of a job may share a machine."""
    names = (settings.sagemaker_host, os.environ.get("GROUP_RANK", ""))
    return f"{host_identity(settings, place.rank)} {names}"


def _tell_hosts(group: Communicator, identity: str) -> tuple[str, ...]:
    own = hashlib.blake2b(identity.encode(), digest_size=_IDENTITY_BYTES).digest()
    everybody = bytearray(_IDENTITY_BYTES * group.size)
    group.all_gather(bytearray(own), everybody)
    return tuple(everybody[rank * _IDENTITY_BYTES : (rank + 1) * _IDENTITY_BYTES].hex() for rank in range(group.size))


def _agree(world: _World, description: Description) -> None:
    """Change the process sets on all ranks at the same point between operations."""
    name = f"clary.{description.verb.name.lower()}"
    request = Request(name, description, is_nameless=True)
    found = world.engines[GLOBAL_SET]
    found.submit([request], wakes_thread=False)
    found.wait([request.handle])


def _change_sets(world: _World, description: Description) -> None:
    """Form or dissolve a process set; the engine calls it on all ranks at once."""
    if description.verb is Verb.REMOVE_PROCESS_SET:
        (number,) = description.details
        world.ranks.pop(number, None)
        leaving = world.engines.pop(number, None)
        if leaving is not None:
            leaving.close(f"process set {number} was removed")
        return
    members = description.details
    group = world.group.subgroup(members if world.place.rank in members else [])
    number, world.next_set = world.next_set, world.next_set + 1
    world.ranks[number] = members
    if group is not None:
        world.engines[number] = Engine(
            group,
            ranks=members,
            settings=world.settings,
            is_single_host=len({world.hosts[rank] for rank in members}) == 1,
        )
