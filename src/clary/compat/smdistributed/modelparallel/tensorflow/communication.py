"""Communication of objects between ranks: `smp.broadcast`, `smp.recv_from`, `smp.send`, `smp.allgather`, barriers.

The source of a broadcast calls `broadcast`; the other ranks call `recv_from` with its rank.
Source: sagemaker-python-sdk `doc/api/training/smp_versions/latest/smd_model_parallel_common_api.rst`.
"""

from __future__ import annotations

from typing import Any

from clary.train.parallel.layout.rank_groups import CommGroup as CommGroup
from clary.train.parallel.layout.rank_groups import RankType as RankType
from clary.train.tf_parallel import session

WORLD = CommGroup.WORLD
MP_GROUP = CommGroup.MP_GROUP
DP_GROUP = CommGroup.DP_GROUP
PP_GROUP = CommGroup.PP_GROUP
TP_GROUP = CommGroup.TP_GROUP
RDP_GROUP = CommGroup.RDP_GROUP


def broadcast(obj: Any, group: CommGroup = CommGroup.WORLD) -> None:
    """Send an object to all other ranks of a group; each calls `recv_from`."""
    session.current().links.broadcast(obj, group.value)


def send(obj: Any, dest_rank: int, rank_type: RankType = RankType.WORLD_RANK) -> None:
    """Send an object to one rank, which calls `recv_from`.

    Args:
        obj: any object that can be pickled.
        dest_rank: counted within this rank's group of `rank_type`.

    Raises: ValueError for a rank that does not exist, and for this rank itself.
    """
    session.current().links.send(obj, dest_rank, rank_type.value)


def recv_from(src_rank: int, rank_type: RankType = RankType.WORLD_RANK) -> Any:
    """Return the next object that a rank has sent or broadcast to this rank."""
    return session.current().links.receive(src_rank, rank_type.value)


def allgather(obj: Any, group: CommGroup = CommGroup.WORLD) -> list[Any]:
    """Return the objects of all ranks of a group, in the order of their ranks in the group."""
    return session.current().links.allgather(obj, group.value)


def barrier(group: CommGroup = CommGroup.WORLD) -> None:
    """Wait for all ranks of a group."""
    session.current().links.barrier(group.value)


def mp_barrier() -> None:
    """Wait for all ranks that hold one model together."""
    barrier(CommGroup.MP_GROUP)


def dp_barrier() -> None:
    """Wait for all ranks that hold the same part of the model."""
    barrier(CommGroup.DP_GROUP)
