"""The cgroup of a host: limits of memory, processors and number of processes, and the kernel's counters.

Where: `first_process` creates the cgroup before the first process of a host starts, and removes it at the end; the
first process moves itself into it. Versions 1 and 2 of cgroups are supported. The cgroup lies below the agent's own
cgroup, so that limits set for the agent by an administrator or an engine apply to its hosts too. Version 2 does not
allow limits below a cgroup that contains processes. So with version 2 the host's cgroup lies below the agent's nearest
ancestor without processes, unless a cgroup in between has a limit that the host would escape. If no ancestor is usable
(below a user's service manager, in a container, or in a cgroup that was prepared for a user), the processes of the
agent's own cgroup are moved into a new leaf of it.

Hosts below the same cgroup share one parent cgroup, called the family. The scheduler divides processors by weight
between the family and the cgroups and processes beside it. A host's weight is that of one ordinary process per
processor of the host; the family's weight is the sum of its hosts' weights. With the kernel's default weight all jobs
together would get no more processor time than one process outside the family.
Source: kernel Documentation/admin-guide/cgroup-v1/memory.rst and cgroup-v2.rst, scheduler/sched-design-CFS.rst.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from clary.agent.host.limits.peak_memory import PeakMemory
from clary.agent.host.limits.process_limits import process_limits
from clary.base.errors import AgentError
from clary.contract.launch_plan import Resources

LEAST_PID_MAX = 32_768  # Linux's default
_FAMILY_FOLDER = "clary"
_LEAF_FOLDER = "clary-service"  # the leaf for processes of a cgroup whose other children have limits
_MOVE_ROUNDS = 20  # rounds, because processes fork while they are moved
_CONTROLLERS = ("memory", "cpu", "pids")
_CPU_PERIOD_US = 100_000
_YIELDED_PART = 0.1  # share of its weight that a host keeps while it only prepares itself
_MAX_WEIGHT_CHECKS = 5  # attempts to set the family's weight, because hosts start and end meanwhile
_MAKE_ATTEMPTS = 20
_MAKE_PAUSE_S = 0.001
_WATCHED = " The agent watches the host's processes instead and ends them when they use more."
# The kernel's errors for a removed cgroup, and for one that is being removed (cgroup_mkdir, kernfs).
_VANISHED = (errno.ENOENT, errno.ENODEV)
_TAKE_OVER_LIMIT_S = 2.0
_REMOVE_LIMIT_S = 5.0
_REMOVE_PAUSE_S = 0.005


class _Weight(NamedTuple):
    """Format of weights in a cgroup version; `per_cpu` is the weight of an ordinary process."""

    file: str
    per_cpu: int
    least: int
    most: int

    def clamp(self, value: float) -> int:
        return round(min(max(value, self.least), self.most))


_WEIGHTS = {1: _Weight("cpu.shares", 1024, 2, 262_144), 2: _Weight("cpu.weight", 100, 1, 10_000)}


@dataclass(frozen=True)
class CgroupPlace:
    """Location of one controller: the agent's own cgroup in the controller's hierarchy."""

    version: int
    mount: str  # visible top folder of the hierarchy
    own: str  # folder of the agent's own cgroup


class CgroupTree:
    """The machine's cgroup file system; tests replace it with plain files."""

    def mountinfo(self) -> str:
        """Return the text of /proc/self/mountinfo."""
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            return file.read()

    def membership(self) -> str:
        """Return the text of /proc/self/cgroup."""
        with open("/proc/self/cgroup", encoding="utf-8", errors="surrogateescape") as file:
            return file.read()

    def most_processes(self) -> int:
        """Return the machine's limit on concurrent processes and threads."""
        found = []
        for name in ("pid_max", "threads-max"):
            with contextlib.suppress(OSError, ValueError):
                found.append(int(self.read(f"/proc/sys/kernel/{name}")))
        return min(found, default=LEAST_PID_MAX)

    def make(self, folder: str) -> None:
        """Create a cgroup unless it exists."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)

    def remove(self, folder: str) -> None:
        """Remove an empty cgroup."""
        os.rmdir(folder)

    def read(self, path: str) -> str:
        """Return the content of a control file."""
        with open(path, encoding="ascii") as file:
            return file.read()

    def children(self, folder: str) -> list[str]:
        """Return the folders of the cgroups directly below a cgroup."""
        return [entry.path for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]

    def write(self, path: str, value: str) -> None:
        """Write a control file, which must exist."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, value.encode("ascii"))
        except OSError as error:
            error.filename = path
            raise
        finally:
            os.close(descriptor)


class HostCgroup:
    """The cgroups of one host, one in each hierarchy. Make it with `create`, end it with `remove`."""

    def __init__(self, tree: CgroupTree) -> None:
        self._tree = tree
        self._folders: dict[str, str] = {}  # controller -> folder
        self._versions: dict[str, int] = {}
        self._homes: dict[str, str] = {}  # folder -> the agent's own cgroup in the same hierarchy
        self._may_move = True
        self.limits_memory = False  # whether the kernel enforces the memory limit
        self.why_memory_is_not_limited = ""
        self.not_enforced: tuple[str, ...] = ()  # sentences
        self.most_processes: int | None = None  # per-user limit if no cgroup counts the host's processes
        self._kills_before = 0  # OOM kills during earlier programs
        self._peak: PeakMemory | None = None
        self._full_weight: int | None = None  # set while the host has only a part of this weight

    @classmethod
    def create(
        cls, name: str, resources: Resources, *, tree: CgroupTree | None = None, may_move: bool = True
    ) -> HostCgroup:
        """Create the cgroup `name` and set the limits of `resources`.

        A limit that cannot be set is no error: `not_enforced` has a sentence about it.

        Args:
            name: of the cgroup.
            resources: of the host.
            tree: the machine's cgroups by default; tests pass another tree.
            may_move: whether processes of the agent's own cgroup may be moved into a leaf of it as a last resort.

        Raises:
            AgentError: the name is invalid, or a cgroup of that name already contains processes; no cgroup of this host
                is left behind.
        """
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
            raise AgentError(f"cgroup name {name!r}: expected letters, digits, '.', '_' and '-', starting with one")
        cgroup = cls(tree or CgroupTree())
        cgroup._may_move = may_move
        sentences = []
        for controller, wanted in _wanted(resources).items():
            try:
                cgroup._add(controller, name, resources)
            except OSError as error:
                if controller == "memory":
                    cgroup.why_memory_is_not_limited = _reason(error)
                if wanted:
                    sentences.append(f"{wanted}: {_reason(error)}.{_WATCHED if controller == 'memory' else ''}")
            except AgentError:
                cgroup.remove()  # those made in other hierarchies
                raise
        cgroup.limits_memory = resources.memory_bytes is not None and not cgroup.why_memory_is_not_limited
        cgroup.not_enforced = tuple(sentences)
        if "pids" not in cgroup._folders:
            cgroup.most_processes = process_limits(cgroup._tree.most_processes()).of_all
        return cgroup

    @property
    def entry_files(self) -> tuple[str, ...]:
        """Files into which a process writes its pid, or 0, to enter the host's cgroups."""
        return tuple(f"{folder}/cgroup.procs" for folder in self.folders)

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders of the host's cgroups, one in each hierarchy."""
        return tuple(dict.fromkeys(self._folders.values()))

    @property
    def home_files(self) -> tuple[str, ...]:
        """Files into which a process writes 0 to move into the agent's own cgroups."""
        return tuple(f"{self._homes[folder]}/cgroup.procs" for folder in self.folders)

    @property
    def visible_folders(self) -> Mapping[str, str]:
        """Path below /sys/fs/cgroup -> folder, for the programs' view of their own limits."""
        return {
            ("" if self._versions[controller] == 2 else controller): folder
            for controller, folder in self._folders.items()
        }

    def version_of(self, controller: str) -> int | None:
        """Return the cgroup version whose controller applies to this host; None if the controller does not apply."""
        return self._versions.get(controller)

    def yield_processors(self) -> None:
        """Reduce the host's weight until `claim_processors` is called; do nothing without a cgroup for processors.

        Raises: OSError.
        """
        folder = self._folders.get("cpu")
        if folder is not None and self._full_weight is None:
            full = int(self._tree.read(f"{folder}/{_WEIGHTS[self._versions['cpu']].file}"))
            self._weigh(folder, full * _YIELDED_PART)
            self._full_weight = full

    def claim_processors(self) -> None:
        """Give the host its full weight again; a second call does nothing. Raises: OSError."""
        if self._full_weight is not None:
            self._weigh(self._folders["cpu"], self._full_weight)
            self._full_weight = None

    def _weigh(self, folder: str, value: float) -> None:
        version = self._versions["cpu"]
        self._tree.write(f"{folder}/{_WEIGHTS[version].file}", str(_WEIGHTS[version].clamp(value)))
        self._weigh_family(os.path.dirname(folder), version)

    def count_anew(self) -> None:
        """Reset the counts of kills and of peak memory for another program."""
        self._kills_before += self.oom_kills()
        if (peak := self._peak_memory()) is not None:
            peak.set_back()

    def oom_kills(self) -> int:
        """Return how many processes the kernel killed at the memory limit; 0 if the kernel does not count them."""
        return max(0, self._all_oom_kills() - self._kills_before)

    def _all_oom_kills(self) -> int:
        folder = self._folders.get("memory")
        if folder is None:
            return 0
        name = "memory.events" if self._versions["memory"] == 2 else "memory.oom_control"
        with contextlib.suppress(OSError):
            for line in self._tree.read(f"{folder}/{name}").splitlines():
                key, _, value = line.partition(" ")
                if key == "oom_kill":
                    return int(value)
        return 0

    def peak_memory_bytes(self) -> int | None:
        """Return the peak memory in bytes, or None if it is unknown.

        It is unknown with version 2 before Linux 5.19, and after `count_anew` before Linux 6.12.
        """
        peak = self._peak_memory()
        return None if peak is None else peak.bytes()

    def _peak_memory(self) -> PeakMemory | None:
        folder = self._folders.get("memory")
        if self._peak is None and folder is not None:
            self._peak = PeakMemory(folder, version=self._versions["memory"], read=self._tree.read)
        return None if folder is None else self._peak

    def pids(self) -> tuple[int, ...]:
        """Return the sorted pids of the host's processes in the agent's PID namespace."""
        found: set[int] = set()
        for path in self.entry_files:
            with contextlib.suppress(OSError):
                found.update(int(line) for line in self._tree.read(path).split())
        return tuple(sorted(found))

    def kill_all(self) -> None:
        """Send SIGKILL to every process of the host."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def remove(self) -> str | None:
        """Remove the cgroups; return the reason if a cgroup still has processes after a few seconds."""
        deadline = time.monotonic() + _REMOVE_LIMIT_S
        refusal = None
        for folder in self.folders:
            while True:
                try:
                    self._tree.remove(folder)
                except FileNotFoundError:
                    break
                except OSError as error:
                    if time.monotonic() < deadline:
                        time.sleep(_REMOVE_PAUSE_S)
                        continue
                    refusal = f"cgroup {folder} could not be removed: {error.strerror}"
                    break
                else:
                    break
            # The last host also removes the family's folder.
            with contextlib.suppress(OSError):
                self._tree.remove(os.path.dirname(folder))
        if "cpu" in self._folders:
            self._weigh_family(os.path.dirname(self._folders["cpu"]), self._versions["cpu"])
        if self._peak is not None:
            self._peak.close()
        self._folders.clear()
        return refusal

    def _add(self, controller: str, name: str, resources: Resources) -> None:
        place = self._place(controller)
        try:
            folder = self._make_folder(place, controller, name)
        except OSError:
            if place.version != 2 or not self._may_move or not self._move_into_leaf(place.own):
                raise
            place = self._place(controller)
            folder = self._make_folder(place, controller, name)
        self._folders[controller] = folder
        self._versions[controller] = place.version
        self._homes[folder] = place.own
        for file, value, needed in _settings(controller, place.version, resources):
            try:
                self._tree.write(f"{folder}/{file}", value)
            except OSError:
                if needed:
                    raise
        if controller == "cpu":
            self._weigh_family(os.path.dirname(folder), place.version)
        if controller == "pids":
            self._limit_processes(folder, place.mount)

    def _limit_processes(self, folder: str, mount: str) -> None:
        """Limit the processes of this host and of all hosts together; a refused limit is left unchanged."""
        family = os.path.dirname(folder)
        most, above = self._tree.most_processes(), family
        while above not in (mount, "/"):
            above = os.path.dirname(above)
            with contextlib.suppress(OSError, ValueError):
                most = min(most, int(self._tree.read(f"{above}/pids.max")))
        limits = process_limits(most)
        for group, limit in ((family, limits.of_all), (folder, limits.of_one)):
            with contextlib.suppress(OSError):
                self._tree.write(f"{group}/pids.max", str(limit))

    def _place(self, controller: str) -> CgroupPlace:
        return find_place(controller, mountinfo=self._tree.mountinfo(), membership=self._tree.membership())

    def _move_into_leaf(self, own: str) -> bool:
        """Move all processes of the agent's own cgroup into a leaf, so that other children can have limits.

        Returns: whether the agent's own cgroup is now empty. A process that may not be moved stays in it.
        """
        if os.path.basename(own) == _LEAF_FOLDER:
            return False
        leaf = f"{own}/{_LEAF_FOLDER}"
        try:
            self._tree.make(leaf)
            for _ in range(_MOVE_ROUNDS):
                pids = self._tree.read(f"{own}/cgroup.procs").split()
                if not pids:
                    return True
                for pid in pids:
                    with contextlib.suppress(ProcessLookupError):
                        self._tree.write(f"{leaf}/cgroup.procs", pid)
        except OSError:
            with contextlib.suppress(OSError):
                self._tree.remove(leaf)  # refused if some processes have moved: they may stay there
        return False

    def _weigh_family(self, family: str, version: int) -> None:
        """Set the family's weight to the sum of its hosts' weights, bounded by the weights that the kernel accepts."""
        weight = _WEIGHTS[version]
        written = None
        # Another agent may add or remove a host between read and write, so read again after the write.
        for _ in range(_MAX_WEIGHT_CHECKS):
            total = 0
            try:
                for host in self._tree.children(family):
                    with contextlib.suppress(OSError, ValueError):
                        total += int(self._tree.read(f"{host}/{weight.file}"))
                if total == 0 or total == written:
                    return
                self._tree.write(f"{family}/{weight.file}", str(weight.clamp(total)))
            except OSError:
                return  # the family was removed with its last host, or is read-only: its weight is left unchanged
            written = total

    def _make_folder(self, place: CgroupPlace, controller: str, name: str) -> str:
        for attempt in range(_MAKE_ATTEMPTS):
            try:
                if place.version == 2:
                    family = self._make_family_v2(place, controller)
                else:
                    family = f"{place.own}/{_FAMILY_FOLDER}"
                    self._tree.make(family)
                folder = f"{family}/{name}"
                others = {made for key, made in self._folders.items() if self._versions[key] == place.version == 2}
                if others - {folder}:
                    # A process is in exactly one cgroup of version 2, so it cannot be in this cgroup and another.
                    raise OSError(
                        errno.EXDEV, "it could only be set in a different cgroup than the memory limit", family
                    )
                if folder not in self._folders.values():
                    self._make_fresh(folder)
            except OSError as error:
                # Another host that ends at this moment, or its engine, may remove the family's folder.
                if error.errno not in _VANISHED or attempt == _MAKE_ATTEMPTS - 1:
                    raise
                time.sleep(_MAKE_PAUSE_S)
            else:
                return folder
        raise AssertionError("the last attempt returns or raises")

    def _make_fresh(self, folder: str) -> None:
        """Create a cgroup whose counters start at zero; remove a dead agent's cgroup of that name first."""
        if os.path.isdir(folder):
            # Processes of a killed agent may still be ending.
            deadline = time.monotonic() + _TAKE_OVER_LIMIT_S
            while self._tree.read(f"{folder}/cgroup.procs").strip() and time.monotonic() < deadline:
                time.sleep(_REMOVE_PAUSE_S)
            if self._tree.read(f"{folder}/cgroup.procs").strip():
                raise AgentError(
                    f"cgroup {folder} holds processes already: another agent runs the same host, or one that died left "
                    "processes behind; end them first"
                )
            self._tree.remove(folder)
        self._tree.make(folder)

    def _make_family_v2(self, place: CgroupPlace, controller: str) -> str:
        """Create the family's folder at a level where `controller` can be enabled for children; return its path."""
        base = place.own
        while True:
            try:
                self._hand_down(base, controller)
                break
            except OSError:
                if base == place.mount or self._limits_something(base):
                    raise
                base = os.path.dirname(base)
        family = f"{base}/{_FAMILY_FOLDER}"
        self._tree.make(family)
        self._hand_down(family, controller)
        return family

    def _hand_down(self, folder: str, controller: str) -> None:
        if controller in self._tree.read(f"{folder}/cgroup.subtree_control").split():
            return
        # If a cgroup contains processes, the kernel refuses to enable a controller for its children only in the case of
        # memory. Enabling cpu or pids would make the children threaded, and no process could enter them.
        if self._holds_processes(folder):
            raise OSError(errno.EBUSY, "it holds processes", folder)
        self._tree.write(f"{folder}/cgroup.subtree_control", f"+{controller}")

    def _holds_processes(self, folder: str) -> bool:
        try:
            self._tree.read(f"{folder}/cgroup.type")
        except FileNotFoundError:
            return False  # the root cgroup, which may have both processes and enabled controllers
        return bool(self._tree.read(f"{folder}/cgroup.procs").strip())

    def _limits_something(self, folder: str) -> bool:
        # pids.max is ignored: systemd sets it everywhere, and every host gets its own.
        for name in ("memory.max", "cpu.max"):
            with contextlib.suppress(OSError):
                if not self._tree.read(f"{folder}/{name}").startswith("max"):
                    return True
        return False


def find_place(controller: str, *, mountinfo: str, membership: str) -> CgroupPlace:
    """Return the place of `controller`. Raises: FileNotFoundError if no mounted hierarchy has it.

    Args:
        controller: `memory`, `cpu` or another controller of the kernel.
        mountinfo: text of /proc/self/mountinfo.
        membership: text of /proc/self/cgroup.

    Version 1 takes precedence if both versions are mounted, because a controller is in one hierarchy only, and hybrid
    machines have these controllers in version 1.
    """
    own_paths = {}
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        own_paths.update(dict.fromkeys(controllers.split(","), path))
    candidates: list[CgroupPlace] = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        top, mount = before.split(" ")[3:5]
        if kind == "cgroup" and controller in options.split(",") and controller in own_paths:
            candidates.insert(0, CgroupPlace(1, mount, _below(mount, top, own_paths[controller])))
        elif kind == "cgroup2" and "" in own_paths:
            candidates.append(CgroupPlace(2, mount, _below(mount, top, own_paths[""])))
    if not candidates:
        raise FileNotFoundError(f"this machine has no cgroup hierarchy with the controller {controller!r}")
    return candidates[0]


def can_move_into_leaf(tree: CgroupTree | None = None) -> bool:
    """Whether limits would work if this cgroup's processes were moved into a leaf; no process is moved."""
    tree = tree or CgroupTree()
    try:
        place = find_place("memory", mountinfo=tree.mountinfo(), membership=tree.membership())
        has_memory = "memory" in tree.read(f"{place.own}/cgroup.controllers").split()
    except OSError:
        return False
    files = [f"{place.own}/cgroup.{name}" for name in ("procs", "subtree_control")]
    return place.version == 2 and has_memory and all(os.access(path, os.W_OK) for path in [place.own, *files])


def _below(mount: str, top: str, path: str) -> str:
    """Return the folder of cgroup `path` in a hierarchy whose cgroup `top` is mounted at `mount`."""
    if top != "/" and (path == top or path.startswith(f"{top}/")):
        path = path[len(top) :]
    if path.startswith("/.."):  # outside of this cgroup namespace
        path = "/"
    return f"{mount}{path}".rstrip("/")


def _wanted(resources: Resources) -> dict[str, str]:
    """Return controller -> start of the sentence about its absence; "" if its limit was not requested."""
    memory = cpu = ""
    if resources.memory_bytes is not None:
        memory = f"Memory is not limited to {resources.memory_bytes / 2**30:.1f} GiB by the kernel"
    if _has_quota(resources):
        cpu = f"Processor time is not limited to {resources.num_cpus:g} CPUs"
    return dict(zip(_CONTROLLERS, (memory, cpu, ""), strict=True))


def _has_quota(resources: Resources) -> bool:
    return resources.num_cpus < (os.cpu_count() or 1)


def _settings(controller: str, version: int, resources: Resources) -> list[tuple[str, str, bool]]:
    """Return (file, value, is needed) of each setting; a write to an optional file may fail."""
    if controller == "pids":
        return []  # `_limit_processes` sets this limit, derived from the machine's limits
    if controller == "memory":
        if resources.memory_bytes is None:
            return []
        limit = str(resources.memory_bytes)
        if version == 2:
            return [("memory.max", limit, True), ("memory.swap.max", "0", False)]
        # Memory plus swap; refused if lower than the memory limit, so it is written second.
        return [("memory.limit_in_bytes", limit, True), ("memory.memsw.limit_in_bytes", limit, False)]
    weight = _WEIGHTS[version]
    settings = [(weight.file, str(weight.clamp(resources.num_cpus * weight.per_cpu)), False)]
    if not _has_quota(resources):
        return settings
    quota = max(round(resources.num_cpus * _CPU_PERIOD_US), 1000)  # the kernel accepts at least a millisecond
    if version == 2:
        return [*settings, ("cpu.max", f"{quota} {_CPU_PERIOD_US}", True)]
    return [*settings, ("cpu.cfs_period_us", str(_CPU_PERIOD_US), True), ("cpu.cfs_quota_us", str(quota), True)]


def _reason(error: OSError) -> str:
    where = f" ({error.filename})" if error.filename else ""
    return f"{error.strerror or error}{where}"
