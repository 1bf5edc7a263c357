"""The setup of ranks: the keeper's own process groups, and the leader of the ranks that see the same folder."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from clary.train.checkpoint.folders import order_of, scan
from clary.train.checkpoint.places import Place, partners
from clary.train.checkpoint.ranks import Ranks

_log = logging.getLogger(__name__)
_HOST_VARIABLES = ("CLARY_COLLECTIVE_HOST", "SM_CURRENT_HOST")  # sources of a host's name, preferred to its hostname


@dataclass(kw_only=True)
class Company:
    """One rank's process groups, and facts about all ranks. Ranks are numbered as in the default group."""

    calls: Ranks  # for calls from the program's thread
    writers: Ranks  # for calls from the thread that writes
    copiers: Ranks | None  # for calls from the thread that sends copies; None without copies
    run: str  # unique name of this run, equal on all ranks
    last_order: int  # highest order number of a save that any rank knew when the ranks joined
    places: Sequence[Place]
    partners: Sequence[int | None]  # by rank: the rank that holds its copy, or None

    def leave(self) -> None:
        """Destroy the groups."""
        for ranks in (self.calls, self.writers, self.copiers):
            if ranks is not None and not ranks.is_alone and dist.is_initialized():
                with contextlib.suppress(ValueError, AssertionError, RuntimeError):  # already destroyed by the program
                    dist.destroy_process_group(ranks.group)


def join(folder: Path, *, wants_peers: bool, limit_s: float, last_order: int) -> Company:
    """Create the groups with all other ranks, and the folder if it is missing. Every rank calls it.

    Args:
        folder: folder of this rank's checkpoints; ranks that see the same folder share a leader.
        wants_peers: keep copies in other hosts' memory; on one host a warning says that there are no copies.
        limit_s: timeout of every exchange between ranks, in seconds.
        last_order: order number of the last save that this rank began, which copies in memory may hold; 0 without one.
    Raises: CheckpointError on all ranks if one rank cannot use its folder.
    """
    calls, writers = _ranks(limit_s), _ranks(limit_s)
    run = calls.all(secrets.token_hex(8))[0]
    what = f"opening {folder}"
    probe = folder / f".rank-{run}-{calls.rank}"

    def show_presence() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()

    def look() -> int:
        found = {path: path.name.split("-") for path in folder.glob(".rank-*-*")}
        leader = min(int(number) for _, of_run, number in found.values() if of_run == run)
        if leader == calls.rank:
            for path, (_, of_run, _) in found.items():
                if of_run != run:
                    path.unlink(missing_ok=True)  # left by ranks that were killed while they joined
        return leader

    calls.together(what, show_presence)
    try:
        leader = calls.together(what, look)
    finally:
        probe.unlink(missing_ok=True)

    def stored_order() -> int:
        return max((order_of(one.save) for one in scan(folder)), default=0) if leader == calls.rank else 0

    last_order = calls.highest(max(last_order, calls.together(what, stored_order)))[0]
    host = next((os.environ[name] for name in _HOST_VARIABLES if os.environ.get(name)), socket.gethostname())
    places = calls.all(Place(host=host, leader=leader))
    by_rank = partners(places)
    has_peers = wants_peers and by_rank[0] is not None
    if wants_peers and not has_peers:
        _log.warning("%s: peers=True holds no copies: all ranks are on one host", folder)
    copiers = _ranks(limit_s) if has_peers else None
    return Company(
        calls=calls,
        writers=writers,
        copiers=copiers,
        run=run,
        last_order=last_order,
        places=places,
        partners=by_rank,
    )


def _ranks(limit_s: float) -> Ranks:
    if not dist.is_initialized():
        return Ranks()
    # gloo, whatever backend training uses: these messages are in host memory, and must not mix with training's
    # collectives.
    return Ranks(dist.new_group(backend="gloo", timeout=timedelta(seconds=limit_s)))
