"""The plan of faults and jobs: kinds, times, choices and durations, derived from a seed alone. Pure.

Where: `fault_runner` makes the plan, `fault_run` carries it out through `fault_executor`. The same seed, number and
kinds give the same plan on every machine; the target that a fault finds when it strikes depends on the machine's speed,
and is recorded.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum


class FaultKind(StrEnum):
    """The kind of a fault."""

    KILL_SERVICE = "kill_service"
    KILL_AGENT = "kill_agent"
    KILL_PROGRAM = "kill_program"
    KILL_NETWORK = "kill_network"  # the process that holds the namespaces of a job's hosts
    KILL_STORE = "kill_store"
    PAUSE_SERVICE = "pause_service"
    PAUSE_AGENT = "pause_agent"
    PAUSE_PROGRAM = "pause_program"
    PAUSE_STORE = "pause_store"
    CUT_AGENT_LINK = "cut_agent_link"  # agent and service
    SLOW_AGENT_LINK = "slow_agent_link"
    GARBLE_AGENT_LINK = "garble_agent_link"  # random bytes are inserted
    SWALLOW_AGENT_LINK = "swallow_agent_link"  # bytes are removed, and the connection stays open
    CUT_STORE_LINK = "cut_store_link"  # clients of the object store: service and agents
    GARBLE_STORE_LINK = "garble_store_link"
    SLOW_STORE_LINK = "slow_store_link"
    CUT_HOSTS = "cut_hosts"  # one host of a job loses its link to the other hosts
    CUT_DATABASE = "cut_database"  # every connection of the service to PostgreSQL
    KILL_DATABASE = "kill_database"  # one process of PostgreSQL, after which the server restarts itself
    HOLD_DATABASE = "hold_database"  # another process holds the database's lock
    FILL_HOME = "fill_home"  # the disk of the service: database, logs, objects
    FILL_HOSTS = "fill_hosts"  # the disk of the hosts
    JUMP_CLOCK = "jump_clock"
    SPOIL_ROW = "spoil_row"  # the record of one job in the database
    DELETE_DATABASE = "delete_database"  # the database's files, while the service runs
    LOSE_DATABASE = "lose_database"  # the database's file is missing or damaged when the service starts
    DAMAGE_KEYS = "damage_keys"  # while the service runs
    LOSE_KEYS = "lose_keys"  # when the service starts
    DAMAGE_SERVICE_RECORD = "damage_service_record"
    DAMAGE_STORE_RECORD = "damage_store_record"
    DAMAGE_ENGINE_RECORD = "damage_engine_record"  # the engine's record of a job's processes
    DAMAGE_NETWORK_RECORD = "damage_network_record"  # a file of the process that holds a job's network
    TEAR_LOG = "tear_log"  # the service is killed within a write: half a line, half an index, drafts of files
    TEAR_SPOOL = "tear_spool"  # an agent is killed within a write


class Ruin(StrEnum):
    """The damage to a file of the state folder."""

    DELETED = "deleted"
    EMPTIED = "emptied"
    HALVED = "halved"
    GARBLED = "garbled"


class Moment(StrEnum):
    """The point in a job's life at which a fault strikes; ANY strikes at once."""

    ANY = "any"
    ACCEPTED = "accepted"  # CreateTrainingJob has just answered
    STARTING = "starting"  # hosts are being made
    DOWNLOADING = "downloading"
    TRAINING = "training"  # the program runs and its output is shipped
    UPLOADING = "uploading"  # between the program's end and the terminal status
    ENDED = "ended"  # the status is terminal and hosts are released


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One planned fault."""

    number: int  # from 1
    kind: FaultKind
    moment: Moment
    pause_s: float  # delay after the previous fault
    duration_s: float  # time until it is mended; for a kill of the service, until the service is started again
    choice: float  # 0 to 1: selects one of the possible targets
    amount: float = 0.0  # seconds of the clock's offset, number of bytes, or another value that the strike explains
    ruin: Ruin | None = None  # kind of damage to a file
    overlaps: bool = False  # whether the next fault strikes before this fault is mended

    def __str__(self) -> str:
        return f"fault {self.number}: {self.kind} at {self.moment} for {self.duration_s:.1f} s"


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """One job that runs while faults strike."""

    name: str
    num_hosts: int
    num_lines: int  # lines that each host's program prints
    work_s: float  # time over which the program prints them
    weights_bytes: int  # size of each host's result
    exit_code: int

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names of the hosts."""
        return tuple(f"algo-{index + 1}" for index in range(self.num_hosts))


# Kind -> relative frequency, shortest and longest duration in seconds.
_WEIGHTS: dict[FaultKind, tuple[int, float, float]] = {
    FaultKind.KILL_SERVICE: (6, 0.0, 0.8),
    FaultKind.KILL_AGENT: (7, 0.0, 0.0),
    FaultKind.KILL_PROGRAM: (7, 0.0, 0.0),
    FaultKind.KILL_NETWORK: (3, 0.0, 0.0),
    FaultKind.KILL_STORE: (5, 0.0, 0.0),
    FaultKind.PAUSE_SERVICE: (7, 0.2, 1.2),
    FaultKind.PAUSE_AGENT: (7, 0.2, 1.2),
    FaultKind.PAUSE_PROGRAM: (5, 0.2, 1.2),
    FaultKind.PAUSE_STORE: (5, 0.2, 1.2),
    FaultKind.CUT_AGENT_LINK: (10, 0.0, 0.8),
    FaultKind.SLOW_AGENT_LINK: (4, 0.3, 1.0),
    FaultKind.GARBLE_AGENT_LINK: (6, 0.0, 0.0),
    FaultKind.SWALLOW_AGENT_LINK: (4, 0.0, 0.5),
    FaultKind.CUT_STORE_LINK: (7, 0.0, 0.6),
    FaultKind.GARBLE_STORE_LINK: (4, 0.0, 0.3),
    FaultKind.SLOW_STORE_LINK: (3, 0.3, 1.0),
    FaultKind.CUT_HOSTS: (3, 0.2, 4.0),
    FaultKind.CUT_DATABASE: (8, 0.0, 0.5),
    FaultKind.KILL_DATABASE: (3, 0.0, 0.0),
    FaultKind.HOLD_DATABASE: (5, 0.2, 1.5),
    FaultKind.FILL_HOME: (2, 0.2, 0.8),
    FaultKind.FILL_HOSTS: (2, 0.2, 0.8),
    FaultKind.JUMP_CLOCK: (5, 0.0, 0.0),
    FaultKind.SPOIL_ROW: (5, 0.0, 1.5),
    FaultKind.DELETE_DATABASE: (4, 0.0, 0.0),
    FaultKind.LOSE_DATABASE: (3, 0.0, 0.0),
    FaultKind.DAMAGE_KEYS: (3, 0.0, 0.0),
    FaultKind.LOSE_KEYS: (2, 0.0, 0.0),
    FaultKind.DAMAGE_SERVICE_RECORD: (4, 0.0, 0.0),
    FaultKind.DAMAGE_STORE_RECORD: (4, 0.0, 0.0),
    FaultKind.DAMAGE_ENGINE_RECORD: (6, 0.0, 0.0),
    FaultKind.DAMAGE_NETWORK_RECORD: (4, 0.0, 0.0),
    FaultKind.TEAR_LOG: (4, 0.0, 0.0),
    FaultKind.TEAR_SPOOL: (3, 0.0, 0.0),
}
# A fault aimed at a job needs a job at a moment at which the fault's target exists.
_MOMENTS_OF_JOBS = (Moment.STARTING, Moment.DOWNLOADING, Moment.TRAINING, Moment.UPLOADING, Moment.ENDED)
_MOMENTS_WITH_PROGRAM = (Moment.TRAINING,)
_NEEDS_PROGRAM = {FaultKind.KILL_PROGRAM, FaultKind.PAUSE_PROGRAM, FaultKind.CUT_HOSTS}
_OF_JOB = {
    FaultKind.KILL_AGENT,
    FaultKind.KILL_NETWORK,
    FaultKind.PAUSE_AGENT,
    FaultKind.CUT_AGENT_LINK,
    FaultKind.SLOW_AGENT_LINK,
    FaultKind.GARBLE_AGENT_LINK,
    FaultKind.SWALLOW_AGENT_LINK,
    FaultKind.SPOIL_ROW,
    FaultKind.DAMAGE_ENGINE_RECORD,
    FaultKind.DAMAGE_NETWORK_RECORD,
    FaultKind.TEAR_SPOOL,
}
_RUINS_FILE = {
    FaultKind.DELETE_DATABASE,
    FaultKind.LOSE_DATABASE,
    FaultKind.DAMAGE_KEYS,
    FaultKind.LOSE_KEYS,
    FaultKind.DAMAGE_SERVICE_RECORD,
    FaultKind.DAMAGE_STORE_RECORD,
    FaultKind.DAMAGE_ENGINE_RECORD,
    FaultKind.DAMAGE_NETWORK_RECORD,
    FaultKind.TEAR_LOG,
}
_OVERLAP_SHARE = 0.7
_ANY_SHARE = 0.4
_MAX_PAUSE_S = 0.3
MAX_CLOCK_JUMP_S = 120.0  # two jumps in opposite directions stay within the allowed skew of signatures
MAX_GARBLED_BYTES = 400


def make_faults(
    seed: int, num_faults: int, kinds: Collection[FaultKind] = tuple(FaultKind), *, num_spare: int = 0
) -> tuple[Fault, ...]:
    """Return the faults that follow from a seed.

    Args:
        seed: any number.
        num_faults: number of faults that strike.
        kinds: kinds of the faults; each strikes at least once if `num_faults` allows.
        num_spare: further faults that replace faults without a target.
    """
    chooser = random.Random(f"faults:{seed}")
    ordered = [kind for kind in FaultKind if kind in set(kinds)]
    drawn = chooser.choices(ordered, weights=[_WEIGHTS[kind][0] for kind in ordered], k=num_faults + num_spare)
    if num_faults >= len(ordered):
        places = chooser.sample(range(num_faults), len(ordered))
        for place, kind in zip(places, ordered, strict=True):
            drawn[place] = kind
    return tuple(_fault(chooser, number, kind) for number, kind in enumerate(drawn, start=1))


def name_prefix(seed: int, run: str) -> str:
    """Return the prefix of a run's job names; `run` distinguishes simultaneous runs of one seed."""
    return f"fault-{seed % 10**6}-{run}-"


def make_jobs(seed: int, run: str) -> Iterator[JobSpec]:
    """Yield the jobs that follow from a seed, endlessly; only their names depend on the run."""
    chooser = random.Random(f"jobs:{seed}")
    number = 0
    while True:
        number += 1
        yield JobSpec(
            name=f"{name_prefix(seed, run)}{number:05d}",
            num_hosts=chooser.choice((1, 1, 1, 2)),
            num_lines=chooser.choice((20, 50, 200, 2000)),
            work_s=round(chooser.uniform(0.3, 3.0), 2),
            weights_bytes=chooser.choice((1_000, 50_000, 400_000)),
            exit_code=chooser.choice((0,) * 11 + (3,)),
        )


def _fault(chooser: random.Random, number: int, kind: FaultKind) -> Fault:
    _, least_s, most_s = _WEIGHTS[kind]
    if kind in _NEEDS_PROGRAM:
        moment = chooser.choice(_MOMENTS_WITH_PROGRAM)
    elif kind in _OF_JOB:
        moment = chooser.choice(_MOMENTS_OF_JOBS)
    else:
        moment = Moment.ANY if chooser.random() < _ANY_SHARE else chooser.choice(tuple(Moment)[1:])
    amount = 0.0
    if kind is FaultKind.JUMP_CLOCK:
        amount = round(chooser.uniform(-MAX_CLOCK_JUMP_S, MAX_CLOCK_JUMP_S), 1)
    elif kind is FaultKind.SPOIL_ROW:
        amount = chooser.choice((0.0, 1.0))
    elif kind in (FaultKind.GARBLE_AGENT_LINK, FaultKind.GARBLE_STORE_LINK, FaultKind.SWALLOW_AGENT_LINK):
        amount = chooser.randint(1, MAX_GARBLED_BYTES)
    return Fault(
        number=number,
        kind=kind,
        moment=moment,
        pause_s=round(chooser.uniform(0.0, _MAX_PAUSE_S), 3),
        duration_s=round(chooser.uniform(least_s, most_s), 3),
        choice=chooser.random(),
        amount=amount,
        overlaps=chooser.random() < _OVERLAP_SHARE,
        ruin=chooser.choice(tuple(Ruin)) if kind in _RUINS_FILE else None,
    )
