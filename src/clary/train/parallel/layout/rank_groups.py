"""Names of rank groups in SMP v1 scripts, for every framework."""

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
    """The groups in which a rank has an index."""

    WORLD_RANK = Along.WORLD
    MP_RANK = Along.MP
    DP_RANK = Along.DP
    PP_RANK = Along.PP
    TP_RANK = Along.TP
    RDP_RANK = Along.RDP
