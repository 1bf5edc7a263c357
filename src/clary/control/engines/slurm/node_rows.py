"""Reads the lines of sinfo: nodes with their states, and partitions. Pure.

Where: `queue_watch` requests the format below; `kinds` makes kinds of nodes from the rows, `views` makes sentences and
notices.
Source: sinfo(1), "NODE STATE CODES".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from clary.control.engines.slurm.queue_rows import read_limit_s

NODE_FORMAT = "%N|%T|%c|%m|%G|%f|%P|%l|%E"
_NUM_FIRST = 8  # fields before the reason, which may contain the separator
_STATE = re.compile(r"([a-z_]+)([^a-z_]*)")
_IN_BRACKETS = re.compile(r"\([^)]*\)")
_COUNT = re.compile(r"([0-9]+)([kKmM]?)")
_FACTORS = {"": 1, "k": 1024, "m": 1024 * 1024}
_NOTHING = ("", "(null)", "N/A", "none")


@dataclass(frozen=True, kw_only=True)
class Gres:
    """Generic resources of one type: gpu:a100:8."""

    name: str
    kind: str  # a100; empty without a type
    count: int


@dataclass(frozen=True, kw_only=True)
class NodeRow:
    """One node."""

    name: str
    state: str  # Slurm's word without its signs: allocated, draining, down
    signs: str  # such as * for a node that does not answer
    why: str  # reason given when it was taken out of use; may be empty
    num_cpus: int
    memory_mib: int
    gres: tuple[Gres, ...]
    features: tuple[str, ...]
    partitions: tuple[str, ...]

    @property
    def is_down(self) -> bool:
        """Whether Slurm has given the node up: processes there no longer count.

        A controller that has just started calls every node unknown until the node has reported.
        """
        return self.state == "down" or self.state.startswith("powered_down")

    @property
    def is_silent(self) -> bool:
        """Whether the node does not answer."""
        return "*" in self.signs or self.is_down

    @property
    def is_leaving(self) -> bool:
        """Whether the node gets no new jobs: it is drained, failing, or restarted after its job."""
        return self.state in ("draining", "drained", "failing", "fail", "rebooting") or "@" in self.signs

    @property
    def is_free(self) -> bool:
        """Whether a job could get the node now; nodes that are powered down until needed are free, too."""
        return self.state == "idle" and not set(self.signs) & set("*$@^!%-")

    @property
    def words(self) -> str:
        """The node's state in Slurm's own words."""
        return f"{self.state}{self.signs}" + (f": {self.why}" if self.why else "")


@dataclass(frozen=True, kw_only=True)
class Nodes:
    """All nodes and partitions of a cluster."""

    by_name: Mapping[str, NodeRow]
    limits_s: Mapping[str, float | None]  # partition -> the longest time limit of a job, None without a limit
    default_partition: str  # empty if there is none


def read_nodes(text: str) -> Nodes:
    """Return the nodes of lines of `sinfo --Node` with NODE_FORMAT; broken lines are skipped."""
    by_name: dict[str, NodeRow] = {}
    limits_s: dict[str, float | None] = {}
    default = ""
    for line in text.split("\n"):
        fields = line.split("|", _NUM_FIRST)
        state = _STATE.fullmatch(fields[1]) if len(fields) == _NUM_FIRST + 1 else None
        if state is None or not fields[0] or not fields[2].isdigit() or not fields[3].isdigit():
            continue
        partition = fields[6].rstrip("*")
        default = partition if fields[6].endswith("*") else default
        limits_s[partition] = read_limit_s(fields[7])
        known = by_name.get(fields[0])
        by_name[fields[0]] = NodeRow(
            name=fields[0],
            state=state[1],
            signs=state[2],
            why="" if fields[8].strip() in _NOTHING else fields[8].strip(),
            num_cpus=int(fields[2]),
            memory_mib=int(fields[3]),
            gres=read_gres(fields[4]),
            features=() if fields[5] in _NOTHING else tuple(fields[5].split(",")),
            partitions=(*(known.partitions if known else ()), partition),
        )
    return Nodes(by_name=by_name, limits_s=limits_s, default_partition=default)


def read_gres(text: str) -> tuple[Gres, ...]:
    """Return the resources of a list such as `gpu:a100:8(S:0-1),nic:2`, or of an option; broken parts are left out."""
    found = []
    for part in _IN_BRACKETS.sub("", text).split(","):
        name, *rest = part.split(":")
        if name in _NOTHING:
            continue
        count = _COUNT.fullmatch(rest[-1]) if rest else None
        kinds = rest[:-1] if count else rest
        number = int(count[1]) * _FACTORS[count[2].lower()] if count else 1
        found.append(Gres(name=name, kind=kinds[0] if kinds else "", count=number))
    return tuple(found)


def read_graces(text: str) -> dict[str, float]:
    """Return partition -> seconds, for partitions whose jobs get a grace between preemption and their end.

    Args:
        text: output of `scontrol --oneliner show partition`.
    """
    found = {}
    for line in text.split("\n"):
        fields = dict(word.partition("=")[::2] for word in line.split())
        grace, mode = fields.get("GraceTime", ""), fields.get("PreemptMode", "OFF")
        if fields.get("PartitionName") and grace.isdigit() and int(grace) and mode not in ("OFF", "SUSPEND", "GANG"):
            found[fields["PartitionName"]] = float(grace)
    return found


def num_gpus(gres: tuple[Gres, ...]) -> int:
    """Return the number of GPUs among the resources."""
    return sum(one.count for one in gres if one.name == "gpu")
