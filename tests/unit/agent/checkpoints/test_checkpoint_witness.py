"""The witness's decisions on files of real writers, each a separate process."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from clary.agent.checkpoints.evidence.observations import Decision, ProgramEnd
from clary.agent.checkpoints.evidence.witness import Witness, _Trail
from clary.agent.checkpoints.folder import CheckpointFolder
from clary.agent.checkpoints.scanning import FileFacts, scan
from clary.base.clock import SystemClock
from clary.contract.checkpoint_evidence import Evidence

PATIENCE_S = 20.0
REST_S = 0.3

# A child process that runs a test's program, and writes a line and waits at each call of `here`.
PREFACE = """
import mmap, os, subprocess, sys, time
def here(word):
    print(word, flush=True)
    sys.stdin.readline()
os.chdir(sys.argv[1])
"""


class Writer:
    """A program that writes into the folder and waits at each call of `here`."""

    def __init__(self, folder: Path, program: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-c", PREFACE + textwrap.dedent(program), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def reach(self, word: str) -> None:
        """Wait until the program calls `here` with this word."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == word

    def go_on(self) -> None:
        """Let the program continue from `here`."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> int:
        """Let the program run to its end; return its exit code."""
        self.process.communicate("\n" * 9, timeout=PATIENCE_S)
        return self.process.returncode


class Watched:
    """A folder with its witness, which takes this process for the first process of the program."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.folder = CheckpointFolder(path)
        self.notes: list[str] = []
        self.witness = self.new_witness()
        self.writers: list[Writer] = []

    def new_witness(self) -> Witness:
        witness = Witness(
            self.folder,
            clock=SystemClock(),
            note=self.notes.append,
            least_rest_s=REST_S,
        )
        witness.start()
        witness.follow(os.getpid())
        return witness

    def write(self, program: str) -> Writer:
        self.writers.append(Writer(self.path, program))
        return self.writers[-1]

    def decide(self, path: str = "model", *, end: ProgramEnd | None = None) -> Decision:
        snapshot = scan(self.folder)
        return self.witness.decide(snapshot, list(snapshot.files), end=end)[path]

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline_s, scan(self.folder)
            time.sleep(0.01)


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    found = Watched(folder)
    yield found
    for writer in found.writers:
        writer.process.kill()
        writer.process.communicate()
    found.witness.close()


HALVES = {
    "a stream": """
        file = open("model", "wb")
        file.write(b"x" * 1000); file.flush(); here("half")
        file.write(b"x" * 1000); file.close(); here("whole")
    """,
    "a descriptor that a child has inherited": """
        file = open("model", "wb", buffering=0)
        file.write(b"x" * 1000)
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=file)
        file.close(); here("half")
        child.communicate(b"x" * 1000); here("whole")
    """,
    "a sparse file with its size from the first": """
        file = open("model", "wb", buffering=0)
        file.truncate(1 << 20); os.pwrite(file.fileno(), b"x", 0); here("half")
        os.pwrite(file.fileno(), b"x", (1 << 20) - 1); file.close(); here("whole")
    """,
    "a file whose room was taken beforehand": """
        file = open("model", "wb", buffering=0)
        os.posix_fallocate(file.fileno(), 0, 8192); here("half")
        os.pwrite(file.fileno(), b"x" * 8192, 0); file.close(); here("whole")
    """,
    "a memory map without a descriptor": """
        file = open("model", "w+b"); file.truncate(8192)
        pages = mmap.mmap(file.fileno(), 8192); file.close()
        pages[0:4] = b"half"; here("half")
        pages[4096:5000] = b"x" * 904; pages.close(); here("whole")
    """,
    "the same bytes in place": """
        open("model", "wb").write(b"a" * 8192)
        file = open("model", "r+b", buffering=0)
        file.write(b"b" * 4096); here("half")
        file.write(b"b" * 4096); os.utime("model", (1, 1)); file.close(); here("whole")
    """,
    "another name of the same file, outside": """
        file = open("../outside", "wb", buffering=0)
        file.write(b"x" * 1000); os.link("../outside", "model"); here("half")
        file.write(b"x" * 1000); file.close(); here("whole")
    """,
    "a file that was renamed while it was open": """
        file = open("model.part", "wb", buffering=0)
        file.write(b"x" * 1000); os.rename("model.part", "model"); here("half")
        file.write(b"x" * 1000); file.close(); here("whole")
    """,
    "a file that is only appended to": """
        file = open("model", "ab", buffering=0)
        file.write(b"x" * 1000); here("half")
        file.write(b"x" * 1000); file.close(); here("whole")
    """,
}


@pytest.mark.parametrize("how", HALVES)
def test_a_file_open_for_writing_becomes_whole_when_it_is_closed(watched: Watched, how: str) -> None:
    writer = watched.write(HALVES[how])
    writer.reach("half")
    before = watched.decide()
    assert not before.is_whole, before
    assert before.is_blocking
    assert f"process {writer.process.pid} " in before.reason or "child" in how
    writer.go_on()
    writer.reach("whole")
    after = watched.decide()
    assert after.is_whole, after
    assert after.evidence in (Evidence.CLOSED, Evidence.RENAMED)


WHOLE = {
    "a rename": ("open('model.part', 'w').write('x'); os.rename('model.part', 'model')", Evidence.RENAMED),
    "a rename from outside": ("open('../part', 'w').write('x'); os.rename('../part', 'model')", Evidence.RENAMED),
    "a rename over another": (
        "open('model', 'w').write('x'); open('part', 'w').write('xx'); os.replace('part', 'model')",
        Evidence.RENAMED,
    ),
    "a link": ("open('../part', 'w').write('x'); os.link('../part', 'model'); os.unlink('../part')", Evidence.RENAMED),
    "a close": ("open('model', 'w').write('x')", Evidence.CLOSED),
    "a copy with its times": (
        "import shutil; open('../part', 'w').write('x'); os.utime('../part', (1, 1)); shutil.copy2('../part', 'model')",
        Evidence.CLOSED,
    ),
}


@pytest.mark.parametrize("how", WHOLE)
def test_the_decision_names_the_evidence_that_a_file_is_whole(watched: Watched, how: str) -> None:
    program, evidence = WHOLE[how]
    writer = watched.write(f"{program}; here('whole')")
    writer.reach("whole")
    decision = watched.decide()
    assert (decision.is_whole, decision.evidence) == (True, evidence), decision


@pytest.mark.parametrize("rename", [True, False])
def test_files_of_a_new_folder_are_whole_whether_or_not_it_was_watched_in_time(watched: Watched, rename: bool) -> None:
    name = "part" if rename else "step"
    writer = watched.write(
        f"os.makedirs('{name}/a/b'); open('{name}/a/b/model', 'w').write('x'); "
        + ("os.rename('part', 'step'); " if rename else "")
        + "here('whole')"
    )
    writer.reach("whole")
    decision = watched.decide("step/a/b/model")
    assert (decision.is_whole, decision.evidence) == (True, Evidence.RENAMED if rename else Evidence.CLOSED)


HALF = 'file = open("model", "wb", buffering=0); file.write(b"x" * 1000); here("half")'


APPENDING = """
files = [open(name, "ab", buffering=0) for name in sys.argv[2].split()]
for file in files:
    file.write(b"x" * 1000)
here("half")
"""


def test_a_file_open_for_appending_is_unfinished_unless_it_is_a_log(watched: Watched) -> None:
    logs = ("events.out.tfevents.1.host.2.0", "train.log", "trainer_log.jsonl")
    others = ("model", "log.txt", "vocab.txt")
    writer = watched.write(APPENDING.replace("sys.argv[2]", repr(" ".join([*logs, *others]))))
    writer.reach("half")
    watched.decide()
    time.sleep(3 * REST_S)
    for name in logs:
        decision = watched.decide(name)
        assert (decision.is_whole, decision.evidence) == (True, Evidence.LOG), name
    for name in others:
        decision = watched.decide(name)
        assert (decision.is_whole, decision.is_blocking) == (False, True), (name, decision)
        assert decision.reason == f"process {writer.process.pid} (python) has it open for writing"
    assert not watched.decide(end=ProgramEnd.BROKEN).is_whole
    assert writer.end() == 0
    assert [watched.decide(name).evidence for name in others] == [Evidence.CLOSED] * 3


def test_a_file_that_is_reopened_for_each_append_is_whole_at_each_close(watched: Watched) -> None:
    writer = watched.write("for _ in range(3): open('loss', 'ab').write(b'x'); here('line')")
    for _ in range(3):
        writer.reach("line")
        assert watched.decide("loss").evidence is Evidence.CLOSED
        writer.go_on()


def test_a_writer_that_is_killed_leaves_a_torn_file_that_no_rest_makes_whole(watched: Watched) -> None:
    writer = watched.write(HALF)
    writer.reach("half")
    watched.decide()
    writer.process.kill()
    writer.process.wait()
    time.sleep(2 * REST_S)
    decision = watched.decide()
    assert (decision.is_whole, decision.is_torn) == (False, True), decision
    assert f"process {writer.process.pid} " in decision.reason
    assert "signal 9" in decision.reason
    (watched.path / "model").write_bytes(b"y" * 2000)
    assert watched.decide().is_whole, "it was written anew"


def test_a_writer_that_is_killed_between_two_looks_leaves_a_torn_file(watched: Watched) -> None:
    writer = watched.write(HALF)
    writer.reach("half")
    watched.wait_for(lambda: writer.process.pid in watched.witness._processes.pids)
    writer.process.kill()
    writer.process.wait()
    decision = watched.decide()
    assert (decision.is_whole, decision.is_torn) == (False, True), decision


def test_after_a_kill_closed_files_are_whole_and_the_open_file_is_not(watched: Watched) -> None:
    writer = watched.write('open("before", "w").write("x"); here("one"); ' + HALF)
    writer.reach("one")
    assert watched.decide("before").is_whole
    writer.go_on()
    writer.reach("half")
    writer.process.kill()
    writer.process.wait()
    assert not watched.decide(end=ProgramEnd.BROKEN).is_whole
    assert watched.decide("before", end=ProgramEnd.BROKEN).evidence is Evidence.CLOSED
    finished = watched.decide(end=ProgramEnd.FINISHED)
    assert (finished.is_whole, finished.evidence) == (True, Evidence.RESTED), "stored, and not known to be whole"
    assert "though the program ended with 0" in finished.reason


def test_a_kill_long_after_a_close_leaves_the_file_whole(watched: Watched) -> None:
    writer = watched.write("os.mkdir('a'); open('a/model', 'w').write('x'); here('one'); " + HALF)
    writer.reach("one")
    watched.wait_for(lambda: writer.process.pid in watched.witness._processes.pids)
    time.sleep(0.5)
    writer.go_on()
    writer.reach("half")
    writer.process.kill()
    writer.process.wait()
    assert watched.decide("a/model").evidence is Evidence.CLOSED, "though no look has come before the kill"


def test_a_child_that_ends_with_0_has_closed_what_it_wrote(watched: Watched) -> None:
    writer = watched.write("subprocess.run(['cp', sys.executable, 'model']); here('whole')")
    writer.reach("whole")
    decision = watched.decide()
    assert (decision.is_whole, decision.evidence) == (True, Evidence.CLOSED), decision


def test_a_new_witness_judges_old_files_by_rest_and_markers(watched: Watched) -> None:
    (watched.path / "dcp").mkdir()
    for name in ("dcp/__0_0.distcp", "dcp/.metadata", "model"):
        (watched.path / name).write_text("x")
    watched.witness.close()
    watched.witness = watched.new_witness()
    decision = watched.decide()
    assert (decision.is_whole, decision.is_blocking) == (False, False)
    watched.wait_for(lambda: watched.decide().is_whole)
    assert watched.decide().evidence is Evidence.RESTED
    assert watched.decide().rested_s >= REST_S
    assert watched.decide("dcp/__0_0.distcp").evidence is Evidence.MARKED


DCP = """
os.mkdir("ck")
for name in ("shard", ".metadata"):
    open(f"ck/{name}", "wb").write(b"x" * 1000)
"""
OLD, OLDER = (7200.0, 7200.0), (3600.0, 3600.0)


def age(watched: Watched) -> None:
    """Set times of the folder's files as if a save had left them two hours after the epoch."""
    for name in ("shard", ".metadata"):
        os.utime(watched.path / "ck" / name, OLD)


@pytest.mark.parametrize("is_known", [True, False], ids=["looked at before", "there before the watch"])
def test_an_old_marker_does_not_vouch_for_a_rewritten_shard_with_an_older_time(
    watched: Watched, is_known: bool
) -> None:
    first = watched.write(DCP)
    assert first.end() == 0
    age(watched)
    if is_known:
        assert watched.decide("ck/shard").is_whole
    else:
        watched.witness.close()
        watched.witness = watched.new_witness()
    # As if the clock had been set back, or a copy had kept the time of its source.
    writer = watched.write(
        'file = open("ck/shard", "wb", buffering=0); file.write(b"y" * 500); os.utime("ck/shard", (3600, 3600)); '
        "here('half')"
    )
    writer.reach("half")
    watched.wait_for(lambda: writer.process.pid in watched.witness._processes.pids)
    writer.process.kill()
    writer.process.wait()
    decision = watched.decide("ck/shard")
    assert (decision.is_whole, decision.is_torn) == (False, True), decision
    time.sleep(2 * REST_S)
    assert not watched.decide("ck/shard").is_whole


def leave_in_doubt(watched: Watched, monkeypatch, program: str) -> None:
    """Let a program write and end at once, on a kernel that does not report the exit status."""
    monkeypatch.setattr("clary.agent.checkpoints.evidence.processes._status_of_zombie", lambda pid, started_at: None)
    monkeypatch.setattr("clary.agent.checkpoints.evidence.processes._status_of_reaped", lambda pidfd: None)
    writer = watched.write(program)
    writer.reach("begun")
    watched.decide("ck/shard")
    with watched.witness._lock:  # the witness does not look between the close and the end
        writer.go_on()
        writer.process.wait(PATIENCE_S)


@pytest.mark.parametrize(
    ("marker", "evidence"),
    [
        ("open('ck/.metadata', 'w').write('new')", Evidence.MARKED),
        ("open('ck/part', 'w').write('new'); os.rename('ck/part', 'ck/.metadata')", Evidence.MARKED),
        ("pass", Evidence.RESTED),
    ],
)
def test_a_marker_that_was_seen_to_come_last_counts_whatever_the_timestamps(
    watched: Watched, monkeypatch, marker: str, evidence: Evidence
) -> None:
    assert watched.write(DCP).end() == 0
    age(watched)
    leave_in_doubt(
        watched,
        monkeypatch,
        f"""
        here("begun")
        open("ck/shard", "wb").write(b"y" * 2000); os.utime("ck/shard", (9000, 9000))
        {marker}
        os.utime("ck/.metadata", (8000, 8000))
        """,
    )
    if evidence is Evidence.MARKED and "rename" not in marker:
        # The marker is in doubt like the shard: its writer's exit status is unknown, too.
        assert watched.decide("ck/shard").evidence is Evidence.RESTED
        watched.wait_for(lambda: watched.decide("ck/.metadata").is_whole)
        watched.wait_for(lambda: watched.decide("ck/shard").evidence is Evidence.MARKED)
    else:
        assert watched.decide("ck/shard").evidence is evidence


def test_without_events_polls_show_which_file_came_last(watched: Watched) -> None:
    # times of the poll that first saw the present state, and of the poll before
    seen_at = {"ck/shard": (10.0, 5.0), "ck/.metadata": (20.0, 15.0)}

    def came_last(**changes: tuple[float, float]) -> bool | None:
        (watched.path / "ck").mkdir(exist_ok=True)
        for path in seen_at:
            (watched.path / path).write_text("x")
        watched.witness._events._histories.clear()
        snapshot = scan(watched.folder)
        for path, facts in snapshot.files.items():
            since_s, before_s = changes.get(path.rpartition("/")[2].strip("."), seen_at[path])
            watched.witness._trails[path] = _Trail(facts=facts, since_s=since_s, before_s=before_s, begun_s=0.0)
        watched.witness._events._histories.clear()
        return watched.witness._came_last("ck/.metadata", "ck/shard", snapshot)

    with watched.witness._lock:
        assert came_last() is True
        assert came_last(metadata=(10.0, 5.0)) is None, "both came between two looks"
        assert came_last(metadata=(10.0, -inf), shard=(10.0, -inf)) is None, "both were there"
        assert came_last(metadata=(1.0, -inf)) is False


def test_a_new_witness_finds_the_process_that_has_an_old_file_open(watched: Watched) -> None:
    writer = watched.write(HALF)
    writer.reach("half")
    watched.witness.close()
    watched.witness = watched.new_witness()
    time.sleep(2 * REST_S)
    decision = watched.decide()
    assert decision.is_blocking
    assert f"process {writer.process.pid} " in decision.reason
    assert writer.end() == 0
    assert watched.decide().evidence is Evidence.CLOSED


@pytest.mark.long
def test_after_an_event_queue_overflow_no_event_is_assumed(watched: Watched, monkeypatch) -> None:
    writer = watched.write(HALF)
    writer.reach("half")
    with watched.witness._lock:  # the event queue is not read
        limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
        for number in range(limit // 2 + 10):
            (watched.path / f"f{number % 2}").touch()
            (watched.path / f"f{number % 2}").unlink()
    watched.wait_for(lambda: any("ran over" in note for note in watched.notes))
    assert watched.decide().is_blocking
    writer.go_on()
    writer.process.wait(PATIENCE_S)
    assert watched.decide().evidence is Evidence.CLOSED


def test_without_watches_files_are_judged_by_the_processes_that_have_them_open(tmp_path: Path, monkeypatch) -> None:
    def refuse(self: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("clary.agent.checkpoints.evidence.inotify.Inotify.__init__", refuse)
    (tmp_path / "checkpoints").mkdir()
    watched = Watched(tmp_path / "checkpoints")
    try:
        assert [note for note in watched.notes if "max_user_instances" in note] == watched.notes != []
        writer = watched.write(HALF)
        writer.reach("half")
        assert watched.decide().is_blocking
        assert writer.end() == 0
        assert watched.decide().evidence is Evidence.CLOSED
    finally:
        watched.witness.close()


def test_without_leases_and_on_shared_file_systems_maps_and_descriptors_are_found(
    watched: Watched, monkeypatch
) -> None:
    monkeypatch.setattr("clary.agent.checkpoints.evidence.witness.is_shared_with_machines", lambda device: True)
    for how in ("a stream", "a memory map without a descriptor"):
        writer = watched.write(HALVES[how])
        writer.reach("half")
        watched.witness._processes.find()
        assert watched.decide().is_blocking or watched.decide().is_blocking
        writer.go_on()
        writer.reach("whole")
        assert watched.decide().evidence is Evidence.CLOSED, "a close was told"
        assert writer.end() == 0


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="a file system of its own size takes root")
def test_a_file_that_was_closed_on_a_full_disk_is_not_whole(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)], check=True, timeout=10)
    watched = Watched(folder)
    try:
        writer = watched.write(
            """
            try:
                with open("model", "wb") as file:
                    file.write(b"x" * (8 << 20))
            except OSError:
                here("full")
            """
        )
        writer.reach("full")
        decision = watched.decide()
        assert (decision.is_whole, decision.reason) == (False, "the disk was full while it was written")
    finally:
        for one in watched.writers:
            one.process.kill()
            one.process.communicate()
        watched.witness.close()
        subprocess.run(["umount", str(folder)], check=True, timeout=10)


def test_a_folder_that_is_removed_and_made_again_is_watched_again(watched: Watched) -> None:
    for _ in range(3):
        writer = watched.write(
            "os.mkdir('a'); open('a/part', 'w').write('x'); os.rename('a/part', 'a/model'); here('w')"
        )
        writer.reach("w")
        time.sleep(0.1)
        shutil.rmtree(watched.path / "a")
    writer = watched.write(
        "os.mkdir('a'); here('m'); open('a/part', 'w').write('x'); os.rename('a/part', 'a/model'); here('w')"
    )
    writer.reach("m")
    watched.witness.decide(scan(watched.folder), [])
    writer.go_on()
    writer.reach("w")
    assert watched.decide("a/model").evidence is Evidence.RENAMED


def test_nothing_stays_open_once_a_witness_is_closed(watched: Watched) -> None:
    before = len(os.listdir("/proc/self/fd"))
    witness = watched.new_witness()
    witness.decide(scan(watched.folder), [])
    witness.close()
    witness.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_lease_that_is_broken_does_no_harm(watched: Watched) -> None:
    writer = watched.write("for _ in range(3000): open('model', 'wb').close()\nhere('done')")
    path = watched.path / "model"
    watched.wait_for(path.exists)
    while not select.select([writer.process.stdout], [], [], 0)[0]:
        watched.decide()
    writer.reach("done")


@pytest.mark.parametrize(("step_s", "pause_s"), [(0.0, 3.0), (86_400.0, 10.0), (-86_400.0, 0.0)])
def test_setting_the_clock_does_not_count_as_a_pause_of_a_writer(
    watched: Watched, step_s: float, pause_s: float
) -> None:
    first = FileFacts(size_bytes=1, modified_ns=10**18, changed_ns=10**18, inode=7, mode=0o644)
    then_ns = 10**18 + round((3.0 + step_s) * 1e9)
    second = FileFacts(size_bytes=2, modified_ns=then_ns, changed_ns=then_ns, inode=7, mode=0o644)
    known = watched.witness._follow("model", first, now_s=100.0, before_s=95.0)
    watched.witness._trails["model"] = replace(known, held_s=100.0)
    trail = watched.witness._follow("model", second, now_s=105.0, before_s=100.0)
    assert trail.longest_pause_s == pause_s


@pytest.fixture
def starved(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> Watched:
    """A witness whose own thread does not get a turn."""
    monkeypatch.setattr(Witness, "_round", lambda witness: 0.01)
    watched.witness.close()
    watched.witness = watched.new_witness()
    return watched


@pytest.mark.parametrize("looks", [True, False])
def test_a_file_that_was_closed_before_a_look_is_whole_after_its_writer_is_stopped(starved: Watched, looks) -> None:
    writer = starved.write(
        """
        os.mkdir("step"); open("step/model", "wb").write(b"x" * 1000)
        half = open("half", "wb"); half.write(b"x" * 1000); half.flush(); here("written")
        """
    )
    writer.reach("written")
    if looks:
        assert starved.witness.look_now(PATIENCE_S)
    writer.process.terminate()
    writer.process.wait(PATIENCE_S)
    model = starved.decide("step/model", end=ProgramEnd.BROKEN)
    assert model.is_whole == looks, model
    assert model.evidence is (Evidence.CLOSED if looks else Evidence.RESTED)
    assert not starved.decide("half", end=ProgramEnd.BROKEN).is_whole


def test_a_look_that_takes_too_long_is_not_waited_for(watched: Watched) -> None:
    with watched.witness._lock:
        began_s = time.monotonic()
        assert not watched.witness.look_now(0.05)
        assert time.monotonic() - began_s < PATIENCE_S / 2
        assert not watched.witness.close(0.05), "what holds the lock may never end"


def test_a_look_after_the_end_of_the_watch_opens_nothing(watched: Watched) -> None:
    assert watched.witness.close()
    assert watched.witness.look_now(PATIENCE_S)
    assert watched.witness._processes.pids == ()
