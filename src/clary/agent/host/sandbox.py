"""A host's parts and its program, as plain data.

Where: the supervisor fills it in from the launch plan and the launcher's processes; `program.Program.start` carries
it out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from clary.base.mapped_users import MappedUsers
from clary.contract.agent_protocol import ProcessExit
from clary.contract.launch_plan import Isolation, Resources


@dataclass(frozen=True, kw_only=True)
class ProcessSpec:
    """One process to start; the program is all of them and their descendants."""

    argv: tuple[str, ...]  # argv[0] without a slash is looked up in PATH of `environment`, as a shell would
    environment: Mapping[str, str]  # complete: no variable of the agent is added
    working_folder: str  # as the program sees it
    rank: int | None
    local_rank: int


@dataclass(frozen=True, kw_only=True)
class Bind:
    """A folder or file of the machine that the program sees at `target`.

    With `overlay` the program may change the files that it sees while `source` stays as it is: an environment into
    which it may `pip install`. Where the kernel refuses the overlay, the source is bound writable and `not_isolated`
    says so; with `copied_otherwise` it is copied to the target instead, which has to be a place of the host's own. With
    `kept_as` the overlay's layer, which holds the changes, lies at `host_folder/<kept_as>` once the host has ended by
    itself or by order; where the kernel refuses the overlay, no host is made. With `keeps_owners` the source keeps its
    owners: programs with users of their own can read there only files that all users may read. Without it the machine's
    root counts as the programs' root.
    """

    source: str
    target: str
    below: str | None = None  # of a file system: folder below `source` to show, reached without following a link
    read_only: bool = False
    overlay: bool = False
    copied_otherwise: bool = False
    kept_as: str = ""  # one folder name; not for late binds
    keeps_owners: bool = False  # not for late binds


@dataclass(frozen=True, kw_only=True)
class Sandbox:
    """A host: the world that its program sees. With plain processes only resources and cgroup name are used."""

    isolation: Isolation
    hostname: str
    host_folder: str  # existing private folder of this host; changes to the machine's files, /tmp and mounts live here
    ml_folder: str  # seen at /opt/ml
    network_namespace_path: str | None = None  # to join; None shares the machine's network
    user_namespace_path: str | None = None  # to join first; None: real root, or this user without it
    mapped_users: MappedUsers | None = None  # of programs, if the network belongs to them; otherwise root makes them
    hosts_file: Mapping[str, str]  # name -> address, for /etc/hosts
    resources: Resources
    cgroup_name: str  # of `contract.cgroup_names`; one folder name, unique among hosts that live at the same time
    binds: tuple[Bind, ...] = ()
    visible_folders: tuple[str, ...] = ()  # of the machine, besides every host's; changes stay private
    shows_whole_machine: bool = False
    hidden_folders: tuple[str, ...] = ()  # empty for the program, except for `binds` in them


@dataclass(frozen=True, kw_only=True)
class ProgramResult:
    """How a program ended."""

    exits: tuple[ProcessExit, ...]  # in the order in which the processes were given
    oom_kills: int  # processes that the kernel killed because the host's memory limit was reached
    peak_memory_bytes: int | None  # None where no cgroup counted it
    notes: tuple[str, ...]  # failures beside the exits, in sentences
    lost_why: str = ""  # a sentence, if the host's first process ended before the program did
