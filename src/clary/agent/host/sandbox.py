"""Description of a host and its program, as plain data.

Where: the supervisor builds it from the launch plan and the launcher's processes; `program.Program.start` executes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from clary.base.mapped_users import MappedUsers
from clary.contract.agent_protocol import ProcessExit
from clary.contract.launch_plan import Isolation, Resources


@dataclass(frozen=True, kw_only=True)
class ProcessSpec:
    """One process to start; a program consists of these processes and their descendants."""

    argv: tuple[str, ...]  # an argv[0] without a slash is searched for in PATH of `environment`, as in a shell
    environment: Mapping[str, str]  # complete: no variable of the agent is added
    working_folder: str  # path in the program's view
    rank: int | None
    local_rank: int


@dataclass(frozen=True, kw_only=True)
class Bind:
    """A folder or file of the machine that the program sees at `target`.

    With `overlay` the program may change the files at `target` while `source` stays unchanged. An example is an
    environment into which the program may `pip install`. If the kernel refuses the overlay, the source is bound
    read-only and reported in `not_isolated`; with `copied_otherwise` it is copied to the target instead, which must be
    a path of the host's own. With `kept_as` the overlay's layer of changes lies at `host_folder/<kept_as>` after the
    host has ended by itself or by order; if the kernel refuses the overlay, no host is made. With `keeps_owners` the
    source keeps its owners: programs with users of their own can read in it only files that all users may read. Without
    it the machine's root is mapped to the programs' root.
    """

    source: str
    target: str
    below: str | None = None  # for a file system: folder below `source` to show, opened without following links
    read_only: bool = False
    overlay: bool = False
    copied_otherwise: bool = False
    kept_as: str = ""  # a single folder name; not for late binds
    keeps_owners: bool = False  # not for late binds


@dataclass(frozen=True, kw_only=True)
class Sandbox:
    """A host as its program sees it. Plain processes ignore its namespaces, hosts file, binds and lists of folders."""

    isolation: Isolation
    hostname: str
    host_folder: str  # this host's existing private folder; contains /tmp, mounts, and changes to the machine's files
    ml_folder: str  # mounted at /opt/ml
    network_namespace_path: str | None = None  # to join; None: the machine's network is shared
    user_namespace_path: str | None = None  # to join first; None: real root, or a new user namespace of this user
    mapped_users: MappedUsers | None = None  # programs' users if the network belongs to them; otherwise root makes them
    hosts_file: Mapping[str, str]  # name -> address, for /etc/hosts
    resources: Resources
    cgroup_name: str  # from `contract.limits.cgroup_names`; one folder name, unique among concurrent hosts
    binds: tuple[Bind, ...] = ()
    visible_folders: tuple[str, ...] = ()  # shown besides the folders that every host shows; changes stay private
    shows_whole_machine: bool = False
    hidden_folders: tuple[str, ...] = ()  # folders that appear empty to the program, except for `binds` in them


@dataclass(frozen=True, kw_only=True)
class ProgramResult:
    """Result of a program."""

    exits: tuple[ProcessExit, ...]  # in the order of the given processes
    oom_kills: int  # processes that the kernel killed because the host's memory limit was reached
    peak_memory_bytes: int | None  # None if no cgroup counted it
    notes: tuple[str, ...]  # sentences about failures other than exits
    lost_why: str = ""  # a sentence, if the host's first process ended before the program did
