"""The mesh of all ranks, and the groups along its axes.

Where: made once, from a program's parallel degrees; all code that communicates gets its groups from the mesh. This
module neither communicates nor imports torch.

[Note: axes] A rank has one coordinate on every axis. Ranks that differ on one axis alone work together on

    pp    one model, cut into stages             pipeline
    tp    one layer, cut into slices             tensor
    rdp   the same part of the model, replicated  reduced data
    ep, cp                                        experts, context: reserved, of degree 1

and two unions of axes have names: mp = pp and tp, the ranks that hold one model together; dp = tp, rdp, ep and cp, the
ranks that hold the same stage. A group along some axes holds the ranks with equal coordinates on all other axes,
ordered by global rank.

[Note: placement] A placement is the order of the axes, slowest-varying first. D, P and T stand for rdp, pp and tp. With
DPT, tp varies fastest: consecutive ranks first fill a tensor group (one layer), then the stages of one model, then the
next replica. `cluster` is DPT, `spread` TPD.
Source: sagemaker-python-sdk `doc/api/training/smd_model_parallel_general.rst`, "Ranking mechanism".
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

LETTERS = {"D": "rdp", "P": "pp", "T": "tp"}
PLACEMENTS = {
    "cluster": "DPT",
    "spread": "TPD",
    **{order: order for order in map("".join, itertools.permutations("DPT"))},
}


class Axis(Enum):
    """A direction of the mesh; see [Note: axes]."""

    PP = "pp"
    TP = "tp"
    RDP = "rdp"
    EP = "ep"
    CP = "cp"


class Along(Enum):
    """Names of groups, by the axes along which their ranks differ."""

    WORLD = frozenset(Axis)
    MP = frozenset({Axis.PP, Axis.TP})
    DP = frozenset({Axis.TP, Axis.RDP, Axis.EP, Axis.CP})
    PP = frozenset({Axis.PP})
    TP = frozenset({Axis.TP})
    RDP = frozenset({Axis.RDP})
    EP = frozenset({Axis.EP})
    CP = frozenset({Axis.CP})


@dataclass(frozen=True)
class Mesh:
    """All ranks of a program and their coordinates.

    Args:
        order: the axes, slowest-varying first; axes of degree 1 may be left out.
        degrees: degree of every axis of `order`, in its order.
    """

    order: tuple[Axis, ...]
    degrees: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of ranks."""
        return math.prod(self.degrees)

    def degree(self, along: Along) -> int:
        """Return the number of ranks in a group along these axes."""
        return math.prod(degree for axis, degree in zip(self.order, self.degrees, strict=True) if axis in along.value)

    def coordinate(self, rank: int, axis: Axis) -> int:
        """Return the coordinate of a rank on an axis; 0 on an axis that the mesh lacks.

        Raises: ValueError if there is no such rank.
        """
        return self._coordinates(rank)[self.order.index(axis)] if axis in self.order else 0

    def rank_at(self, place: Mapping[Axis, int]) -> int:
        """Return the rank at some coordinates; axes that `place` does not name count as 0.

        Raises: ValueError if a coordinate is outside its axis.
        """
        rank = 0
        for axis, degree in zip(self.order, self.degrees, strict=True):
            coordinate = place.get(axis, 0)
            if not 0 <= coordinate < degree:
                raise ValueError(f"{axis.value} {coordinate} is not in 0..{degree - 1} of {self}")
            rank = rank * degree + coordinate
        return rank

    def group(self, along: Along, rank: int) -> tuple[int, ...]:
        """Return the ranks of the group of `rank` along these axes, ascending; the index is the group rank.

        Raises: ValueError if there is no such rank.
        """
        self._coordinates(rank)
        return next(group for group in self.groups(along) if rank in group)

    def group_rank(self, along: Along, rank: int) -> int:
        """Return the index of `rank` in its group along these axes.

        Raises: ValueError if there is no such rank.
        """
        return self.group(along, rank).index(rank)

    def groups(self, along: Along) -> tuple[tuple[int, ...], ...]:
        """Return all groups along these axes, ordered by first rank; each rank is in exactly one."""
        return self._all_groups[along]

    @cached_property
    def _all_groups(self) -> dict[Along, tuple[tuple[int, ...], ...]]:
        found = {}
        for along in Along:
            fixed = [place for place, axis in enumerate(self.order) if axis not in along.value]
            groups: dict[tuple[int, ...], list[int]] = {}
            for rank in range(self.size):
                coordinates = self._coordinates(rank)
                groups.setdefault(tuple(coordinates[place] for place in fixed), []).append(rank)
            found[along] = tuple(sorted(map(tuple, groups.values())))
        return found

    def _coordinates(self, rank: int) -> tuple[int, ...]:
        if not 0 <= rank < self.size:
            raise ValueError(f"rank {rank} is not in 0..{self.size - 1} of {self}")
        found = []
        for degree in reversed(self.degrees):
            rank, coordinate = divmod(rank, degree)
            found.append(coordinate)
        return tuple(reversed(found))

    def __str__(self) -> str:
        words = [f"{axis.value}={degree}" for axis, degree in zip(self.order, self.degrees, strict=True)]
        return f"mesh of {self.size} ranks ({', '.join(words)}; slowest first)"


def make_mesh(size: int, *, pipeline_degree: int = 1, tensor_degree: int = 1, placement: str = "cluster") -> Mesh:
    """Make the mesh of `size` ranks.

    Each group of (pipeline degree * tensor degree) ranks holds one replica of the model.

    Args:
        placement: see [Note: placement].

    Raises: ValueError naming the broken rule: degrees are at least 1, their product divides `size`, and the placement
        is known.
    """
    for name, degree in (("pipeline_parallel_degree", pipeline_degree), ("tensor_parallel_degree", tensor_degree)):
        if degree < 1:
            raise ValueError(f"{name} is {degree}; expected 1 or more")
    if size < 1 or size % (pipeline_degree * tensor_degree):
        raise ValueError(
            f"{size} ranks cannot be cut into models of {pipeline_degree} x {tensor_degree} ranks "
            "(pipeline_parallel_degree x tensor_parallel_degree): "
            f"start a multiple of {pipeline_degree * tensor_degree} processes"
        )
    if placement not in PLACEMENTS:
        raise ValueError(f"placement_strategy is {placement!r}; expected one of {', '.join(PLACEMENTS)}")
    degrees = {
        Axis.PP: pipeline_degree,
        Axis.TP: tensor_degree,
        Axis.RDP: size // (pipeline_degree * tensor_degree),
    }
    order = tuple(Axis(LETTERS[letter]) for letter in PLACEMENTS[placement])
    return Mesh(order, tuple(degrees[axis] for axis in order))
