"""After every test: no process, zombie, namespace, mount, cgroup, link, socket or shared memory of it is left.

A plugin that tests/conftest.py names. It uses hooks instead of a fixture, so that it also runs after the fixtures of a
module and of the session. Processes and resources that are being removed have `DEADLINE_S` to disappear; the check
polls. A test that leaves nothing costs some tenths of a millisecond: the full census runs only if a quick look finds a
change. After a test that is no unit test it also runs while a fixture keeps a process alive.
"""

import os
import re
import time
from pathlib import Path

import pytest

from clary.base.processes import read_process_list
from clary.control.engines.local import machine_census
from clary.control.engines.local.cleaning import CGROUP_FAMILY
from clary.control.engines.local.leftover_things import Kind, Thing, left_behind
from clary.control.engines.local.network.network_building import BRIDGE
from clary.testing import census
from leftovers_owners import Owners
from leftovers_world import OwnWorld

DEADLINE_S = 20.0  # the service gives agents of an ended job 10 s to leave, then ends them
POLL_S = 0.05
_PLUGIN = "clary-leftovers"
_OUTPUT = "clary_leftovers_missing"
_QUICK_FILES = ("/proc/self/mountinfo", *(f"/proc/sysvipc/{table}" for table in ("shm", "sem", "msg")))
_QUICK_BYTES = 65536  # read from each file
_QUICK_FOLDERS = (machine_census.SHARED_MEMORY_FOLDER, census.REGISTERED_NAMESPACES_FOLDER)
_TEMPORARY = Path("/var/tmp")
_FABRIC_LINK = re.compile(rf"{BRIDGE}|p\d+")  # names of the links that `fabric` makes


class LeftoversCheck:
    """The check in one process that runs tests."""

    def __init__(self, config):
        self._config = config
        self._world = OwnWorld()
        self.owners = Owners()
        self._quick_files = []  # kept open: they are read after every test
        self._quick_folders = []
        self._clean = ()
        self._is_thorough = True
        self._accepted = None  # the state after the last census that found nothing left
        self._blamed = set()  # pids of processes for which a test was blamed
        self._known = {}  # things that existed at the start, or for which a test was blamed already

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self):
        self._world.enter()
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput[_OUTPUT] = self._world.what_is_missing
        self._config.stash[MISSING].update(self._world.what_is_missing)
        if self._world.has_own_memory:
            self._quick_files = [os.open(path, os.O_RDONLY) for path in _QUICK_FILES if os.path.exists(path)]
            self._quick_folders = [folder for folder in _QUICK_FOLDERS if os.path.isdir(folder)]
        self._clean = self._quick_look()
        self._known = {thing.key: thing for thing in self._census(read_process_list())}
        try:
            return (yield)
        finally:
            for descriptor in self._quick_files:
                os.close(descriptor)
            self._world.leave()

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef, request):
        if fixturedef.scope == "function":
            return (yield)
        before = list(self._known.values()) if self._is_bare() else self._census(read_process_list())
        try:
            return (yield)
        finally:
            if not self._is_clean():
                self._note_what_is_kept(fixturedef, request, before)

    def pytest_fixture_post_finalizer(self, fixturedef):
        self.owners.let_go(fixturedef)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item):
        # unit tests start no daemons, and there are thousands of unit tests
        self._is_thorough = "unit" not in item.path.parts

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item):
        try:
            return (yield)
        finally:
            # Before the fixtures are torn down, while the processes of the test still run and can be recognised.
            if not self._is_clean():
                self.owners.look(item.nodeid, self._world.pids())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item):
        try:
            result = yield
        except BaseException as error:
            if words := self._words_on_leftovers(item):
                error.add_note(words)
            raise
        if words := self._words_on_leftovers(item):
            pytest.fail(words, pytrace=False)
        return result

    def _note_what_is_kept(self, fixturedef, request, before):
        entries = read_process_list()
        made = left_behind(before, self._census(entries))
        if made:
            new = {int(thing.name) for thing in made if thing.kind is Kind.PROCESS}
            self.owners.keep(fixturedef, f"{fixturedef.argname} ({fixturedef.baseid})", made, new)
            self.owners.look(request.node.nodeid, self._world.pids(entries))

    def _is_bare(self):
        """Whether a quick look finds nothing of the tests; the full census is then as at the start."""
        return self._world.is_alone(is_thorough=self._is_thorough) and self._quick_look() == self._clean

    def _is_clean(self):
        """Whether a quick look finds nothing, or, after a unit test, the same as at the last clean census."""
        if self._is_bare():
            return True
        return not self._is_thorough and self._accepted is not None and self._state() == self._accepted

    def _state(self):
        """Return the processes of the tests and the content of a quick look; None if processes cannot be told."""
        signature = self._world.signature()
        return None if signature is None else (signature, self._quick_look())

    def _words_on_leftovers(self, item):
        """Wait until nothing is left; return a description of the leftovers at the deadline, or an empty string."""
        deadline = time.monotonic() + DEADLINE_S
        while not self._is_clean():
            # read before the census: even on a slow machine a census runs after the deadline
            is_last = time.monotonic() > deadline
            state = self._state()
            entries = read_process_list()
            left = self._leftovers(item, entries)
            if not left:
                self._accepted = state
                return ""
            if is_last:
                self._known.update((thing.key, thing) for thing in left)
                self._blamed.update(int(thing.name) for thing in left if thing.kind is Kind.PROCESS)
                lines = [f"- {_with_owner(thing, self.owners.words_on(thing, entries))}" for thing in left]
                return "\n".join(
                    [f"{DEADLINE_S:g} s after {item.nodeid} this is left (whose it is, is said with it):", *lines]
                )
            time.sleep(POLL_S)
        return ""

    def _leftovers(self, item, entries):
        pids = self._world.pids(entries)
        self.owners.look(item.nodeid, pids)
        memory_users = machine_census.shared_memory_users(pids)
        left = left_behind(
            self._known.values(),
            self._census(entries),
            is_legitimate=lambda thing: self.owners.is_legitimate(thing, entries, memory_users),
        )
        return [thing for thing in left if not self._is_of_blamed(thing, entries)]

    def _is_of_blamed(self, thing, entries):
        """Whether a process was started by one for which a test was blamed: a loop that starts others is told once."""
        if not self._blamed or thing.kind not in (Kind.PROCESS, Kind.ZOMBIE):
            return False
        pid = int(thing.name)
        while pid in entries and pid not in self._blamed:
            pid = entries[pid].parent
        return pid in self._blamed

    def _quick_look(self):
        """Return content in which changes of mounts, memory or namespaces show quickly."""
        files = [os.pread(descriptor, _QUICK_BYTES, 0) for descriptor in self._quick_files]
        return files, [os.listdir(folder) for folder in self._quick_folders]

    def _census(self, entries):
        """Return all things on the machine that are known to come from this process's tests."""
        pids = self._world.pids(entries)
        things = census.processes(pids, entries) + census.held_namespaces(pids)
        ours = self.owners.cgroups_of_ours()
        things += [
            thing
            for thing in census.cgroups(CGROUP_FAMILY)
            if (name := os.path.basename(thing.name)) in ours or name.startswith(f"test-{os.getpid()}-")
        ]
        things += machine_census.dead_sockets(self.owners.sockets)
        things += [Thing(kind=Kind.FOLDER, name=str(path)) for path in _TEMPORARY.glob(f"clary-*-{os.getpid()}*")]
        # Links lie in the machine's network namespace, which workers share: they are surely ours only if there is one
        # worker.
        if os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1") == "1":
            things += [link for link in census.links() if _FABRIC_LINK.fullmatch(link.name)]
        if self._world.has_own_memory:
            things += census.mounts() + census.registered_namespaces()
            things += machine_census.shared_memory() + census.ipc_things()
        return things


def _with_owner(thing, owner):
    return Thing(kind=thing.kind, name=thing.name, holder=thing.holder, owner=owner, detail=thing.detail)


MISSING = pytest.StashKey()


def pytest_configure(config):
    config.stash[MISSING] = set()
    is_worker = hasattr(config, "workerinput")
    if is_worker or not config.getoption("numprocesses", None):
        config.pluginmanager.register(LeftoversCheck(config), _PLUGIN)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    node.config.stash[MISSING].update(getattr(node, "workeroutput", {}).get(_OUTPUT, ()))


def pytest_terminal_summary(terminalreporter, config):
    for sentence in sorted(config.stash[MISSING]):
        terminalreporter.write_line(f"leftovers: {sentence}")


@pytest.fixture(scope="session")
def leftover_owners(pytestconfig):
    """The allowed owners of leftovers; a fixture whose processes outlive tests registers them here, with a reason."""
    return pytestconfig.pluginmanager.get_plugin(_PLUGIN).owners
