"""From the first death in a gang to its job being terminal, and to every process of it being gone on every host.

Two hosts with two ranks each (`clary.testing.gangs`), beside two torchrun agents whose ranks all_reduce over gloo
(`torchrun_gang`). Everything runs on one machine: a dead peer is seen at once by its closed connections, which is the
best case for torchrun. `gone` counts zombies, mounts and cgroups of ours; of torchrun's only processes that live.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.collectives.torchrun_gang import TorchrunGang
from benchmarks.jobs import BenchmarkJobs
from benchmarks.lines import Line, median_and_spread, percentile
from benchmarks.service import BenchmarkService, running_service
from clary.testing.gangs import (
    DEAF_SCRIPT,
    INSTANCE_SETTINGS,
    INSTANCE_TYPE,
    PROGRAM,
    SCRIPT,
    Gang,
    GangEnd,
    has_namespaces,
)

NUM_SAMPLES = 10
NUM_PEER_SAMPLES = 5  # torchrun takes ten times as long to start
GOAL_S = 5.0
PEER = "torchrun, two agents"
PEER_LIMIT_S = 30.0  # torchrun that has not ended by then is not asked again


@dataclass(frozen=True, kw_only=True)
class Death:
    """A member of a gang that dies, ours and torchrun's."""

    name: str
    strike: Callable[[Gang], float]
    strike_peer: Callable[[TorchrunGang], float] | None = None
    script: str = SCRIPT
    needs_namespaces: bool = False


DEATHS = (
    Death(name="rank", strike=lambda gang: gang.kill_rank("algo-2", 1), strike_peer=TorchrunGang.kill_rank),
    Death(
        name="host",
        strike=lambda gang: gang.kill_host("algo-2"),
        strike_peer=TorchrunGang.kill_host,
        needs_namespaces=True,
    ),
    Death(name="agent", strike=lambda gang: gang.kill_agent("algo-2"), strike_peer=TorchrunGang.kill_agent),
    Death(name="frozen_agent", strike=lambda gang: gang.freeze_agent("algo-2"), strike_peer=TorchrunGang.freeze_agent),
    Death(name="cut_link", strike=lambda gang: gang.cut_link("algo-2"), needs_namespaces=True),
    Death(name="rank,others_ignore_SIGTERM", strike=lambda gang: gang.kill_rank("algo-2", 1), script=DEAF_SCRIPT),
)


def run(quick: bool) -> Iterator[Line]:
    """Let each member die a number of times."""
    num_samples = 2 if quick else NUM_SAMPLES
    with running_service(INSTANCE_SETTINGS) as service:
        for death in DEATHS:
            if death.needs_namespaces and not has_namespaces(service.home):
                print(f"{death.name}: left out, hosts are plain processes here", file=sys.stderr)
                continue
            jobs = BenchmarkJobs(service, PROGRAM, death.script)
            ends: list[GangEnd] = []
            theirs: list[float] = []
            for index in range(num_samples):
                print(f"{death.name}: {index + 1} of {num_samples}", file=sys.stderr)
                ends.append(_end_one(service, jobs, death, f"failfast-{DEATHS.index(death)}-{index}"))
                is_asked = index < NUM_PEER_SAMPLES and max(theirs, default=0) < PEER_LIMIT_S
                if death.strike_peer is not None and is_asked:
                    theirs.append(_end_peer(death.strike_peer))
            yield from _lines(death, ends, theirs)


def _end_one(service: BenchmarkService, jobs: BenchmarkJobs, death: Death, name: str) -> GangEnd:
    jobs.create(name, instance_type=INSTANCE_TYPE)
    gang = Gang(service.home, name, sagemaker=jobs.sagemaker, logs=jobs.logs)
    end = gang.watch_the_end(death.strike(gang))
    if end.facts["TrainingJobStatus"] != "Failed" or gang.cgroups():
        raise SystemExit(f"{name}: {death.name} died, the job is {end.facts}, its cgroups left are {gang.cgroups()}")
    return end


def _end_peer(strike: Callable[[TorchrunGang], float]) -> float:
    """Return how long torchrun's processes were there, PEER_LIMIT_S if they still are."""
    with TorchrunGang() as gang:
        gone_s = gang.watch_the_end(strike(gang), limit_s=PEER_LIMIT_S)
    return PEER_LIMIT_S if gone_s is None else gone_s


def _lines(death: Death, ends: list[GangEnd], theirs: list[float]) -> Iterator[Line]:
    is_endless = bool(theirs) and max(theirs) >= PEER_LIMIT_S
    note = f"torchrun's processes are still there after {PEER_LIMIT_S:g} s" if is_endless else ""
    no_peers: dict[str, float] = {}
    cases = (
        ("death_to_terminal_s", [end.terminal_s for end in ends], no_peers, "torchrun has no status"),
        ("death_to_all_gone_s", [end.gone_s for end in ends], _peer(theirs), note),
    )
    for metric, samples, peers, peer_note in cases:
        middle, spread = median_and_spread(samples)
        p95 = percentile(samples, 95)
        yield Line(
            case=f"{death.name},hosts=2,ranks=4",
            metric=metric,
            unit="s",
            better="lower",
            ours=middle,
            peers=peers,
            peer_note=peer_note,
            goal=f"p95 < {GOAL_S:g}",
            met=p95 < GOAL_S,
            samples=len(samples),
            spread=spread,
            verified=True,
            details={"p95_s": p95, "max_s": max(samples)}
            | ({"peer_samples": len(theirs), "peer_p95_s": percentile(theirs, 95)} if peers else {}),
        )


def _peer(theirs: list[float]) -> dict[str, float]:
    return {PEER: median_and_spread(theirs)[0]} if theirs else {}
