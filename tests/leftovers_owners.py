"""The owner of each thing found after a test, and whether the thing may be there.

A process belongs to the attempt whose mark it or an ancestor carries, else to the fixture that started it or the state
folder that it serves, else to the test named in its inherited environment. Things of a module's or session's fixture
may stay while the fixture lives; things of an attempt may stay while its job is not terminal.
"""

import contextlib
import json
import os
import sqlite3
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from pathlib import Path

from clary.contract.limits.cgroup_names import host_cgroup_name
from clary.control.engines.local import machine_census
from clary.control.engines.local.agent_processes import MARK_VARIABLE
from clary.control.engines.local.attempt_record import RECORD_FILE, attempt_folders, is_released
from clary.control.engines.local.leftover_things import Kind
from clary.testing import census

HOME_VARIABLE = "CLARY_HOME"
TEST_VARIABLE = "PYTEST_CURRENT_TEST"  # set by pytest and inherited by every process that a test starts


@dataclass
class Kept:
    """The things and state folders that one fixture of a module or session keeps."""

    fixture: str
    keys: set = field(default_factory=set)
    homes: set = field(default_factory=set)


class Owners:
    """The known owners of processes and things; `look` adds to them."""

    def __init__(self):
        self._kept = {}  # fixture definition -> Kept
        self._fixture_of = {}  # key of a thing -> name of the fixture that made it, even after the fixture's end
        self._homes = set()
        self._attempts = {}  # mark -> folder
        self._begun_during = {}  # folder of an attempt -> test
        self._cgroup_attempts = {}  # name of a cgroup -> folder of the attempt, None if only its processes are known
        self._users = {}  # segment of shared memory -> description of the last of our processes seen to use it
        self._excuses = {}  # text in a command line -> why it may be there
        self.sockets = set()  # paths at which processes of ours have listened

    def keep(self, fixture_definition, name, things, pids):
        """Note the things that a fixture has made."""
        kept = Kept(name, {thing.key for thing in things}, {home for pid in pids if (home := _home_of(pid))})
        self._kept[fixture_definition] = kept
        self._fixture_of.update(dict.fromkeys(kept.keys, name))

    def let_go(self, fixture_definition):
        """Forget the things of a fixture that was torn down."""
        self._kept.pop(fixture_definition, None)

    def excuse(self, text, reason):
        """Allow processes with this text in their command line; `reason` is for readers of the call."""
        assert reason
        self._excuses[text] = reason

    def withdraw(self, text):
        """Stop allowing processes with this text in their command line."""
        self._excuses.pop(text, None)

    def look(self, test, pids):
        """Record state folders, attempts, cgroups, sockets and users of memory, visible only while processes live."""
        self._homes |= {home for pid in pids if (home := _home_of(pid))}
        for home in self._homes:
            for folder in attempt_folders(Path(home) / "jobs"):
                if (folder / RECORD_FILE).exists():
                    self._note_attempt(folder / RECORD_FILE, test)
        for pid in pids:
            for name in census.cgroups_of(pid):
                self._cgroup_attempts.setdefault(name, None)
        self.sockets |= census.socket_paths(pids)
        for path, users in machine_census.shared_memory_users(pids).items():
            pid = min(users)
            self._users[path] = f"process {pid} ({census.command_text(pid)}), {self._words_on(pid, {})}"

    def cgroups_of_ours(self):
        """Return the names of cgroups that are known to belong to this worker's hosts."""
        return set(self._cgroup_attempts)

    def attempts_of_kept_homes(self):
        """Return the folders of the attempts of services that fixtures keep."""
        homes = self._kept_homes()
        return [folder for folder in self._attempts.values() if str(folder.parents[2]) in homes]

    def is_legitimate(self, thing, entries, memory_users):
        """Whether a thing may be there now."""
        if any(thing.key in kept.keys for kept in self._kept.values()):
            return True
        if thing.kind is Kind.CGROUP:
            folder = self._cgroup_attempts.get(os.path.basename(thing.name))
            return folder is not None and self._may_run(folder)
        if thing.kind is Kind.SHARED_MEMORY:
            users = memory_users.get(thing.name, ())
            return any(self._may_process_stay(pid, entries) for pid in users)
        if thing.kind in (Kind.PROCESS, Kind.ZOMBIE):
            return self._may_process_stay(int(thing.name), entries)
        if thing.kind is Kind.HELD_NAMESPACE:
            return self._may_process_stay(thing.holder, entries)
        return False

    def words_on(self, thing, entries):
        """Return a description of a thing's owner."""
        if thing.key in self._fixture_of:
            return f"fixture {self._fixture_of[thing.key]}"
        if thing.kind in (Kind.PROCESS, Kind.ZOMBIE):
            return self._words_on(int(thing.name), entries)
        if thing.kind is Kind.HELD_NAMESPACE:
            return self._words_on(thing.holder, entries)
        if thing.kind is Kind.CGROUP and (folder := self._cgroup_attempts.get(os.path.basename(thing.name))):
            return self._words_on_attempt(folder)
        return self._users.get(thing.name, thing.owner)

    def _note_attempt(self, record, test):
        folder = record.parent
        with contextlib.suppress(OSError, ValueError, KeyError):
            self._attempts[json.loads(record.read_text())["mark"]] = folder
            self._begun_during.setdefault(folder, test)
            for host in folder.iterdir():
                if host.is_dir():
                    job_name, attempt = folder.parent.name, int(folder.name)
                    name = host_cgroup_name(job_name, attempt, host=host.name, work_folder=str(folder))
                    self._cgroup_attempts[name] = folder

    def _kept_homes(self):
        return {home for kept in self._kept.values() for home in kept.homes}

    def _may_run(self, folder):
        """Whether an attempt's things may be there: a fixture keeps its service, and its job is not terminal."""
        return str(folder.parents[2]) in self._kept_homes() and not is_over(folder)

    def _may_process_stay(self, pid, entries):
        chain = _with_ancestors(pid, entries)
        for member in chain:
            mark = census.environment_of(member).get(MARK_VARIABLE)
            if mark is not None:
                return mark in self._attempts and self._may_run(self._attempts[mark])
        # Python's resource tracker serves all multiprocessing in this process and ends with it.
        if getattr(resource_tracker._resource_tracker, "_pid", None) in chain:
            return True
        homes = self._kept_homes()
        for member in chain:
            if any((Kind.PROCESS, str(member), str(entries[member].started_at)) in k.keys for k in self._kept.values()):
                return True
            if _home_of(member) in homes:
                return True
            if any(text in census.command_text(member) for text in self._excuses):
                return True
        return False

    def _words_on(self, pid, entries):
        for member in _with_ancestors(pid, entries) or [pid]:
            environment = census.environment_of(member)
            if (mark := environment.get(MARK_VARIABLE)) is not None:
                folder = self._attempts.get(mark)
                return self._words_on_attempt(folder) if folder else f"a job whose folder is gone (mark {mark})"
            if TEST_VARIABLE in environment:
                return f"what {environment[TEST_VARIABLE]} started"
        return "nobody who can be told"

    def _words_on_attempt(self, folder):
        state = "over" if is_over(folder) else "not over"
        return (
            f"job {folder.parent.name}, attempt {folder.name}, {state}, in {folder.parents[2]}, "
            f"begun during {self._begun_during.get(folder)}"
        )


# Queries for the job of an attempt's folder, and for jobs that hold a pool; a terminal job may hold only a warm pool.
_JOB = "SELECT 1 FROM jobs WHERE name = ? AND is_terminal = 0"
_HOLDERS = (
    "SELECT 1 FROM jobs WHERE json_extract(document, '$.pool') = ?"
    " AND (is_terminal = 0 OR (is_released = 0 AND warm_pool_status IS NOT NULL))"
)


def is_over(folder):
    """Whether an attempt or a pool has ended: it is released, its folder is gone, or no job holds it."""
    if not folder.is_dir() or is_released(folder):
        return True
    database = folder.parents[2] / "clary.db"
    try:
        with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
            name = folder.parent.name
            return connection.execute(_HOLDERS if name.startswith("pool_") else _JOB, (name,)).fetchone() is None
    except sqlite3.Error:  # a service on PostgreSQL has no such file: only the release shows the end
        return False


def _home_of(pid):
    """Return the state folder that a process serves: a service by its variable, an object store by its HOME."""
    environment = census.environment_of(pid)
    home = environment.get(HOME_VARIABLE)
    if home is None and environment.get("HOME", "").endswith("/objects"):
        home = os.path.dirname(environment["HOME"])
    return home


def _with_ancestors(pid, entries):
    """Return a process and its ancestors, nearest first, up to this process."""
    chain = []
    while pid in entries and pid not in (0, 1, os.getpid()) and pid not in chain:
        chain.append(pid)
        pid = entries[pid].parent
    return chain
