"""Namespaces and a cgroup for each process that runs tests, so that all leftovers in them come from its own tests.

Two workers of pytest-xdist, and other people's programs, share a machine. Where the kernel allows it (root), a worker
gets what no other process uses: a mount namespace with /dev/shm and /run/netns of its own, an IPC namespace, and a
cgroup in a hierarchy without controllers. The cgroup holds every process that a test started, even if its parent has
ended. Hosts' own cgroups and namespaces are not changed. Without root, processes are recognised by an inherited
variable, which finds less: an orphan with an environment of its own is not found, and shared memory has no known owner.
`what_is_missing` reports these limits.
"""

import contextlib
import ctypes
import os
import tempfile
from pathlib import Path

from clary.base.processes import descendants_in, read_entry, read_process_list
from clary.testing import census

MARK = "CLARYS_TEST_WORKER"  # without the prefix CLARY_, whose variables the service withholds from its child processes
HIERARCHY = "clary-tests"
CLONE_NEWNS, CLONE_NEWIPC = 0x00020000, 0x08000000
MS_REC, MS_PRIVATE, MNT_DETACH = 0x4000, 0x40000, 2
_LINKS_WITHOUT_CHILDREN = 2  # link count of a cgroup's folder without child cgroups
PRIVATE_FOLDERS = {"/dev/shm": "mode=1777", "/run/netns": "mode=755"}


class OwnWorld:
    """The namespaces and cgroup of this process; call `enter` before anything is started, and `leave` at the end."""

    def __init__(self):
        self.what_is_missing = []
        self.has_own_memory = False
        self._cgroup = None
        self._folder = -1  # descriptor of the cgroup's folder, kept open because it is read after every test

    def enter(self):
        """Enter the namespaces and the cgroup that the kernel allows."""
        os.environ[MARK] = f"{os.getpid()}"
        try:
            _call("unshare", CLONE_NEWNS | CLONE_NEWIPC)
            _mount("none", "/", flags=MS_REC | MS_PRIVATE)
            for folder, options in PRIVATE_FOLDERS.items():
                if os.path.isdir(folder):
                    _mount("tmpfs", folder, kind="tmpfs", options=options)
            self.has_own_memory = True
        except OSError as error:
            self.what_is_missing.append(
                f"shared memory, mounts and named network namespaces are not checked after tests: {error}"
            )
        try:
            self._cgroup = _enter_cgroup()
            self._folder = os.open(self._cgroup, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            self.what_is_missing.append(
                f"orphans with an environment of their own are not found after tests: no cgroup hierarchy: {error}"
            )

    def leave(self):
        """Leave and remove the cgroup; namespaces end with the process."""
        if self._cgroup is not None:
            os.close(self._folder)
            _leave_cgroup(self._cgroup)
            self._cgroup = None

    def is_alone(self, *, is_thorough):
        """Whether this process has no child and no other process of its tests is alive.

        With a cgroup the answer is quick and certain. Without a cgroup, `is_thorough` reads the environment of every
        process on the machine, which takes milliseconds; otherwise only children are checked.
        """
        with contextlib.suppress(ChildProcessError):
            # WNOWAIT: the zombie is left for its waiting parent code
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            return False
        if self._cgroup is None:
            return not (is_thorough and self.pids())
        # Opened each time: a file that stays open keeps returning the old list.
        with open("cgroup.procs", "rb", opener=lambda name, flags: os.open(name, flags, dir_fd=self._folder)) as file:
            if file.read().count(b"\n") > 1:
                return False
        return os.fstat(self._folder).st_nlink <= _LINKS_WITHOUT_CHILDREN

    def signature(self):
        """Return the start time of each process of the tests, by its id; None if one is a zombie, or without a cgroup.

        It takes some tenths of a millisecond. Two equal signatures: the same processes are alive.
        """
        with contextlib.suppress(ChildProcessError):
            if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                return None
        if self._cgroup is None:
            return None
        entries = {pid: read_entry(pid) for pid in self._listed()}
        if any(entry is None or entry.has_ended for entry in entries.values()):
            return None
        return {pid: entry.started_at for pid, entry in entries.items()}

    def pids(self, entries=None):
        """Return every process that descends from this process, including zombies that a descendant has yet to reap."""
        entries = read_process_list() if entries is None else entries
        found = descendants_in(entries, [os.getpid()])
        if self._cgroup is not None:
            found |= self._listed()
        else:
            marked = f"{MARK}={os.getpid()}".encode()
            for pid in entries:
                with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
                    if marked in file.read().split(b"\0"):
                        found.add(pid)
        found |= descendants_in(entries, found)
        return {pid for pid in found if pid in entries and pid != os.getpid()}

    def _listed(self):
        """Return the processes in the cgroup and in cgroups below it."""
        found = set()
        for folder, _, _ in os.walk(self._cgroup):
            with contextlib.suppress(OSError), open(f"{folder}/cgroup.procs") as file:
                found.update(int(line) for line in file)
        return found


def _enter_cgroup():
    """Make a cgroup below this process's cgroup in the tests' hierarchy, and move into it; return its folder.

    The hierarchy is mounted only while it is opened, so other processes do not see it.
    """
    place = tempfile.mkdtemp(prefix="clary-tests-")
    try:
        _mount(HIERARCHY, place, kind="cgroup", options=f"none,name={HIERARCHY}")
        try:
            top = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        finally:
            _call("umount2", place.encode(), MNT_DETACH)
    finally:
        os.rmdir(place)
    root = f"/proc/{os.getpid()}/fd/{top}"
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    present = next(line.split(":", 2)[2] for line in lines if f":name={HIERARCHY}:" in line)
    for name in os.listdir(root + present):
        prefix, _, pid = name.partition("-")
        if prefix == "worker" and not census.is_process(int(pid)):
            # cgroup of a run that was killed; the kernel refuses if it still holds a process
            with contextlib.suppress(OSError):
                os.rmdir(f"{root}{present}/{name}")
    folder = f"{root}{present.rstrip('/')}/worker-{os.getpid()}"
    os.mkdir(folder)
    with open(f"{folder}/cgroup.procs", "w") as file:
        file.write("0")
    return folder


def _leave_cgroup(folder):
    with contextlib.suppress(OSError):
        with open(f"{os.path.dirname(folder)}/cgroup.procs", "w") as file:
            file.write("0")
        os.rmdir(folder)


def _mount(source, target, *, kind=None, flags=0, options=None):
    texts = [None if text is None else text.encode() for text in (source, target, kind, options)]
    _call("mount", texts[0], texts[1], texts[2], flags, texts[3])


def _call(name, *arguments):
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
