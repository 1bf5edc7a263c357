"""Pure planning of flat buffers: the order of parameters in each buffer, and the segment that each rank keeps.

[Note: flat buffers] Parameters that are gathered together are concatenated, padded to a multiple of the degree, and cut
into `degree` equal segments, one per rank, regardless of parameter boundaries. So the parameters are views of a
gathered buffer, without copies, and at most degree - 1 elements per buffer are wasted; cuts along the first dimension
of every parameter would waste up to (degree - 1) rows of each.

[Note: order of segments] In a sharding group over H hosts of L ranks each, the rank l of host h keeps segment l*H + h.
Then ranks of equal l gather adjacent segments over the network, and the ranks of a host gather the resulting blocks
within the host: both stages write directly to the final offsets, and each segment is sent to each other host once.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

BUCKET_ELEMENTS = 6_553_600  # elements of one message: 25 MiB of float32, as DDP's buckets


@dataclass(frozen=True)
class Piece:
    """The part of one parameter in a segment; length 0 if the segment has no part of it.

    Args:
        start: offset of its first element in the flat parameter.
        at: offset of its first element in the segment.
    """

    start: int
    at: int
    length: int


@dataclass(frozen=True)
class FlatLayout:
    """The parameters of one flat buffer; see [Note: flat buffers].

    Args:
        degree: number of segments.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    degree: int

    @property
    def numels(self) -> list[int]:
        """Number of elements of each parameter."""
        return [math.prod(shape) for shape in self.shapes]

    @property
    def offsets(self) -> list[int]:
        """The index of each parameter's first element in the buffer."""
        numels = self.numels
        return [sum(numels[:place]) for place in range(len(numels))]

    @property
    def segment_numel(self) -> int:
        """Number of elements of a segment, including the last segment's padding."""
        return -(-sum(self.numels) // self.degree)

    @property
    def padded_numel(self) -> int:
        """Number of elements of the whole buffer, including padding."""
        return self.segment_numel * self.degree

    def pieces(self, segment: int) -> list[Piece]:
        """Return the piece of each parameter in a segment."""
        begin = segment * self.segment_numel
        end = begin + self.segment_numel
        found = []
        for offset, numel in zip(self.offsets, self.numels, strict=True):
            first, last = max(begin, offset), min(end, offset + numel)
            has_any = first < last
            found.append(Piece(first - offset, first - begin, last - first) if has_any else Piece(0, 0, 0))
        return found


@dataclass(frozen=True)
class ParameterSpec:
    """The properties of a parameter that planning uses.

    Args:
        users: numbers of the units that use the parameter.
        kind: parameters of different kinds (dtype, trained or not) never share a buffer.
    """

    name: str
    shape: tuple[int, ...]
    users: frozenset[int]
    kind: Hashable

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class FlatPlan:
    """The plan of one flat buffer; a buffer that is not sharded stays whole on every rank."""

    names: tuple[str, ...]
    users: frozenset[int]
    is_sharded: bool


def plan_flats(
    specs: Sequence[ParameterSpec], *, degree: int, persistence_threshold: int, most_elements: int
) -> list[FlatPlan]:
    """Group parameters with the same users and kind into buffers, in order, up to `most_elements` each.

    Parameters below the threshold, or all parameters if the degree is 1, stay whole; they share buffers of
    BUCKET_ELEMENTS regardless of their users.

    Args:
        specs: parameters in their order in buffers.
        degree: number of ranks that share a replica.
        persistence_threshold: minimum number of elements of a parameter that is sharded.
        most_elements: largest size of a buffer; a larger parameter has a buffer of its own.
    """
    open_plans: dict[tuple[bool, frozenset[int] | None, Hashable], list[list[ParameterSpec]]] = {}
    for spec in specs:
        is_sharded = degree > 1 and spec.numel >= max(persistence_threshold, 1)
        limit = most_elements if is_sharded else min(most_elements, BUCKET_ELEMENTS)
        runs = open_plans.setdefault((is_sharded, spec.users if is_sharded else None, spec.kind), [])
        if not runs or sum(one.numel for one in runs[-1]) + spec.numel > limit:
            runs.append([])
        runs[-1].append(spec)
    return [
        FlatPlan(tuple(one.name for one in run), frozenset[int]().union(*(one.users for one in run)), is_sharded)
        for (is_sharded, _, _), runs in open_plans.items()
        for run in runs
    ]


def host_grid(hosts: Sequence[str], degree: int) -> tuple[int, int] | None:
    """Return the common grid of all sharding groups, (hosts, ranks per host), or None if they do not form one.

    A grid has several hosts with the same number of ranks, at least 2, on each; ranks of a host are adjacent; all
    groups have equal grids.

    Args:
        hosts: the hosts of all replicas, in the order of their ranks.
    """
    shapes = set()
    for begin in range(0, len(hosts), degree):
        group = hosts[begin : begin + degree]
        num_hosts = len(set(group))
        a_host = degree // num_hosts
        blocks = [set(group[first : first + a_host]) for first in range(0, degree, a_host)]
        if degree % num_hosts or any(len(block) != 1 for block in blocks):
            return None
        shapes.add((num_hosts, a_host))
    grid = shapes.pop() if len(shapes) == 1 else (1, 1)
    return grid if min(grid) > 1 else None


def segment_of(member: int, grid: tuple[int, int] | None) -> int:
    """Return the segment that a member of a sharding group keeps; see [Note: order of segments]."""
    if grid is None:
        return member
    num_hosts, a_host = grid
    host, place = divmod(member, a_host)
    return place * num_hosts + host
