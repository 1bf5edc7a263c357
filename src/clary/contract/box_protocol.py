"""Messages between the service and the daemons of boxes: leases that run there, and leases that shall.

Where: `agent.node` asks POST `/clary/v1/boxes/NAME/leases` with a BoxReport, opened by the box's own token, and gets
BoxOrders; the answer waits as long as nothing changes (`control.engines.boxes`). Daemons dial out, nobody dials them.

A *lease* is one host of an allocation on one box. Its way through both sides:

    placed     the service has chosen the box; the daemon does not know it yet
    recorded   the daemon has written it down, and has told the digest of the proof that its boot will show
    running    the boot was started; it becomes the agent under the same process id
    gone       no process of it is left

A daemon starts a lease once in its life: what ended stays ended. A lease that the orders do not name any more is
ended, and then forgotten.
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
POLL_WAIT_S = 5.0  # how long orders that say nothing new are held back; three times as long makes a box silent
MAX_GPUS = 64
MAX_WORDS = 400  # characters of any text of a report
MARK = "BOX_LEASE"  # variable that every process of a lease was started with


class LeasePhase(StrEnum):
    """How far a lease is."""

    PLACED = "placed"
    RECORDED = "recorded"
    RUNNING = "running"
    GONE = "gone"


class Wish(StrEnum):
    """The service's wish for a lease."""

    RUN = "run"
    NOTICE = "notice"  # its agent gets one SIGTERM and takes that for a notice
    END = "end"  # no process of it may be left


@dataclass(frozen=True, kw_only=True)
class BoxFacts:
    """Processors, memory, GPUs and isolation of a box."""

    hostname: str
    user: str
    num_cpus: int
    memory_bytes: int
    gpus: tuple[str, ...] = ()  # UUIDs, or `gpu0` where no driver tells
    isolation: str = ""  # in words: "namespaces", "namespaces without root", "plain processes: ..."
    python_version: str = ""
    restarts: str = ""  # in words: who starts the daemon after a reboot


@dataclass(frozen=True, kw_only=True)
class LeaseReport:
    """One lease as a box knows it."""

    lease: str
    phase: LeasePhase
    proof_digest: str = ""  # SHA-256 of the token that the boot shows, in hex
    pid: int = 0  # of the boot, or of the agent that it became
    started: str = ""  # start time of that process in clock ticks since boot
    why: str = ""  # of GONE, in words


@dataclass(frozen=True, kw_only=True)
class BoxReport:
    """A daemon's report, which every question carries."""

    run: str  # random, of this life of the daemon
    number: int  # rises with every report of a life: an older one that comes late is passed over
    boot_id: str  # of the machine
    daemon: str  # SHA-256 of the daemon's file
    facts: BoxFacts
    leases: tuple[LeaseReport, ...] = ()
    after: int = -1  # version of the orders that it has
    wait_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class LeaseOrder:
    """One lease that a box has or gets."""

    lease: str
    tag: str
    index: int
    job_name: str  # for people who look at the box
    boot: str  # SHA-256 of the boot's source
    wish: Wish = Wish.RUN
    may_start: bool = False  # whether the service has the digest of its proof


@dataclass(frozen=True, kw_only=True)
class BoxOrders:
    """Everything that a box shall have; a lease that is missing here is to be ended."""

    version: int
    leases: tuple[LeaseOrder, ...] = ()


@dataclass(frozen=True, kw_only=True)
class BoxAdmission:
    """A box's way to the service; the token opens its own orders alone."""

    name: str
    token: str = field(repr=False)
    service_url: str
    ca_pem: str
