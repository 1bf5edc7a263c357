"""Messages between the service and the daemons of boxes: leases that run on a box, and leases that the service orders.

Where: `agent.node` sends a BoxReport with `POST /clary/v1/boxes/NAME/leases`, with the box's own token, and gets
BoxOrders; the answer waits until orders change (`control.engines.boxes`). Only daemons open connections.

A *lease* is one host of an allocation on one box. Its phases on both sides:

    placed     the service has chosen the box; the daemon does not know it yet. A daemon reports this phase if it cannot
               read the lease's files at the moment; such a report changes nothing
    recorded   the daemon has recorded it, and reported the digest of the proof that its boot program (`agent.boot`)
               will show
    running    the boot program was started; it becomes the agent under the same process id
    gone       no process of it is left

A daemon starts each lease only once: an ended lease stays ended. The daemon ends a lease that the orders no longer
contain, and then deletes its record.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from clary.base.string_enum import StrEnum

LEASES_PATH = "/clary/v1/boxes/{box}/leases"
BOOT_PATH = "/clary/v1/boxes/{box}/boot/{digest}"
BOX_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,61}[A-Za-z0-9])?")
DIGEST = re.compile(r"[0-9a-f]{64}")
LEASE_ID = re.compile(r"lease_[0-9a-f]{16}")
POLL_WAIT_S = 5.0  # longest wait for changed orders; a box without a request for three times this long counts as silent
MAX_GPUS = 64
MAX_WORDS = 400  # limit of characters of each text in a report
MARK = "BOX_LEASE"  # variable that every process of a lease was started with


class LeasePhase(StrEnum):
    """Phase of a lease."""

    PLACED = "placed"
    RECORDED = "recorded"
    RUNNING = "running"
    GONE = "gone"


class Wish(StrEnum):
    """The service's wish for a lease."""

    RUN = "run"
    NOTICE = "notice"  # send its agent one SIGTERM, which announces that its capacity will end
    END = "end"  # end all its processes


@dataclass(frozen=True, kw_only=True)
class BoxFacts:
    """Processors, memory, GPUs and isolation of a box."""

    hostname: str
    user: str
    num_cpus: int
    memory_bytes: int
    gpus: tuple[str, ...] | None = ()  # UUIDs; empty if there is no driver, or it fails; None before its first answer
    isolation: str = ""  # in words: "namespaces", "namespaces without root", "plain processes: ..."
    python_version: str = ""
    restarts: str = ""  # in words: what starts the daemon after a reboot


@dataclass(frozen=True, kw_only=True)
class LeaseReport:
    """One lease as a box knows it."""

    lease: str
    phase: LeasePhase
    proof_digest: str = ""  # SHA-256 of the token that the boot program shows, in hex
    pid: int = 0  # process id of the boot, or of the agent that replaced it
    started: str = ""  # start time of that process in clock ticks since boot
    why: str = ""  # reason for GONE, or why the lease could not be started yet, in words


@dataclass(frozen=True, kw_only=True)
class BoxReport:
    """A daemon's report, which every poll carries."""

    run: str  # random id of this daemon process
    number: int  # grows with every report of a run: the service ignores older reports that arrive late
    boot_id: str  # boot id of the machine
    daemon: str  # SHA-256 of the daemon's file
    facts: BoxFacts
    leases: tuple[LeaseReport, ...] = ()
    after: int = -1  # version of the orders that the daemon has
    wait_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class LeaseOrder:
    """One lease that a box runs or has to run."""

    lease: str
    tag: str
    index: int
    job_name: str  # name of the job; daemons do not use it
    boot: str  # SHA-256 of the boot's source
    wish: Wish = Wish.RUN
    may_start: bool = False  # whether the service knows the digest of the lease's proof


@dataclass(frozen=True, kw_only=True)
class BoxOrders:
    """All leases that a box has to run; the daemon ends every other lease."""

    version: int
    leases: tuple[LeaseOrder, ...] = ()


@dataclass(frozen=True, kw_only=True)
class BoxAdmission:
    """Address and token for a box; the token authorises only requests of this box."""

    name: str
    token: str = field(repr=False)
    service_url: str
    ca_pem: str
