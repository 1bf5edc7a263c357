"""The groups of ranks by the names that scripts give them, for SMP v1 on every framework."""

from __future__ import annotations

from enum import Enum

from clary.train.parallel.layout.mesh import Along


class CommGroup(Enum):
    """Groups of ranks."""

    WORLD = Along.WORLD
    MP_GROUP = Along.MP
    DP_GROUP = Along.DP
    PP_GROUP = Along.PP
    TP_GROUP = Along.TP
    RDP_GROUP = Along.RDP


class RankType(Enum):
    """The groups in which ranks are counted."""

    WORLD_RANK = Along.WORLD
    MP_RANK = Along.MP
    DP_RANK = Along.DP
    PP_RANK = Along.PP
    TP_RANK = Along.TP
    RDP_RANK = Along.RDP
