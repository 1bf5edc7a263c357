"""Messages by which a host on another machine joins a job: its boot program's requests, and the answers.

Where: `agent.boot` sends an Enrolment as JSON with `POST /clary/v1/allocations/TAG/INDEX` and repeats the request on
202; the boot uses only the standard library and cannot import this package, so it builds the same JSON by hand
(`test_boot` compares both). A *tag* is the pool that the host belongs to.

    200 Admission   the boot becomes the agent of that host
    202 Standby     other hosts have not joined yet: the boot asks again, and is answered within `wait_s`
    410             the host is refused: wrong proof, an INDEX that another boot has taken, an attempt that has ended
    503             the scheduler is unavailable, or the enrolment cannot be stored: the boot asks again
"""

from __future__ import annotations

from dataclasses import dataclass, field

MAX_LIST = 256  # entries of any list of an enrolment; more are a mistake or an attack


@dataclass(frozen=True, kw_only=True)
class Address:
    """One IPv4 address of a node."""

    interface: str
    address: str
    prefix_length: int
    speed_mbit_s: int = 0  # 0: unknown to the kernel


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU that the host may use."""

    index: int  # index of the GPU on its node
    uuid: str = ""  # UUID; empty if no driver reports it


@dataclass(frozen=True, kw_only=True)
class NodeReport:
    """Findings of a boot program on its node."""

    node: str  # hostname
    addresses: tuple[Address, ...]
    used_address: str  # the address that reached the service
    num_cpus: int
    memory_bytes: int
    gpus: tuple[Gpu, ...] = ()
    isolation: str = "processes"  # value of launch_plan.Isolation
    isolation_why: str = ""  # sentences on missing isolation, if isolation is less than namespaces
    python_version: str = ""
    scratch: str = ""  # folder of this host on its node
    free_port: int = 0  # a free port for the master of a job without a network of its own


@dataclass(frozen=True, kw_only=True)
class Enrolment:
    """One request of a boot."""

    claim: str  # made by the boot, 32 hex digits: the same boot repeats requests with the same claim
    proof: str = field(repr=False)  # munge credential over "TAG INDEX", or a token
    report: NodeReport
    wait_s: float = 0.0  # longest time that the answer may wait for other hosts


@dataclass(frozen=True, kw_only=True)
class Standby:
    """Answer to a boot that has to wait."""

    bundle: str  # SHA-256 of the agent's bundle, which the boot fetches meanwhile
    is_admitted: bool = False


@dataclass(frozen=True, kw_only=True)
class Admission:
    """Answer to a boot once all hosts of its allocation have joined."""

    bundle: str
    pool: str
    pool_token: str = field(repr=False)
    job: str
    attempt: int
    agent_token: str = field(repr=False)
    host: str
    is_admitted: bool = True
