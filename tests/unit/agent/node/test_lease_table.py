"""Orders for leases, carried out with files only; keepers are fakes, and the processes are the test's own."""

import errno
import os
import re
import subprocess
from dataclasses import replace

import pytest

from clary.agent.node import lease_files
from clary.agent.node import lease_table as module
from clary.agent.node.box_folder import BoxConfig, BoxFolder
from clary.agent.node.keeper import EXIT_KEPT
from clary.agent.node.lease_files import KeptProcess, LeaseFiles
from clary.agent.node.lease_table import START_LIMIT_S, LeaseTable
from clary.base.processes import ProcessId
from clary.contract.box_protocol import LeaseOrder, LeasePhase, Wish

LEASE, OTHER = "lease_0123456789abcdef", "lease_fedcba9876543210"
ORDER = LeaseOrder(lease=LEASE, tag="pool_0123456789ab", index=0, job_name="job-7", boot="b" * 64)
CONFIG = BoxConfig(name="box1", url="https://head:4571", machine="m" * 64)


class FakeKeeper:
    """A started keeper whose exit code the test sets."""

    def __init__(self, command, **options):
        self.command, self.options, self.code, self.pid, self.was_killed = command, options, None, 1 << 22, False
        self.hangs = False

    def poll(self):
        return self.code

    def kill(self):
        self.was_killed, self.code = True, -9

    def wait(self, timeout):
        if self.hangs:
            raise subprocess.TimeoutExpired("keeper", timeout)
        return self.code


class World:
    """A table over a folder, and the keepers that it starts."""

    def __init__(self, root, monkeypatch):
        self.folder, self.keepers, self.ended, self.left = BoxFolder(root), [], [], 0
        self.source = lambda digest: root / "boot.py"
        monkeypatch.setattr(module.subprocess, "Popen", self._start)
        monkeypatch.setattr(module, "end_marked", self._end)
        self.renew()

    def renew(self, boot_id="boot-1"):
        """Start the daemon again: make a new table over the same folder."""
        archive = self.folder.root / "node.pyz"
        self.table = LeaseTable(self.folder, CONFIG, archive, boot_id, lambda digest: self.source(digest))
        self.table.load()

    def _start(self, command, **options):
        self.keepers.append(FakeKeeper(command, **options))
        return self.keepers[-1]

    def _end(self, lease, known, own, *, limit_s):
        self.ended.append(lease)
        return self.left

    def files(self, lease=LEASE):
        return LeaseFiles(self.folder.leases / lease)

    def begin(self):
        """Start a lease whose keeper and boot are this process."""
        self.table.obey([ORDER])
        self.table.obey([replace(ORDER, may_start=True)])
        me = ProcessId.of(os.getpid())
        self.files().write_keeper(KeptProcess(pid=me.pid, started=me.started))
        self.files().write_boot(KeptProcess(pid=me.pid, started=me.started))
        self.table.look()

    def lose(self):
        """Let keeper and boot be gone: record a start time that no process has."""
        (self.files().folder / "keeper.json").unlink()
        self.files().write_keeper(KeptProcess(pid=os.getpid(), started="1"))
        (self.files().folder / "boot.json").unlink()
        self.files().write_boot(KeptProcess(pid=os.getpid(), started="1"))

    @property
    def phases(self):
        return {report.lease: report.phase for report in self.table.reports()}


@pytest.fixture
def world(tmp_path, monkeypatch):
    return World(tmp_path, monkeypatch)


def test_a_new_lease_is_recorded_first_and_started_once_the_service_has_its_proof(world):
    world.table.obey([ORDER])
    [report] = world.table.reports()
    assert (report.phase, report.proof_digest) == (LeasePhase.RECORDED, world.files().read_record().proof_digest)
    world.table.obey([ORDER])
    assert world.keepers == []
    world.table.obey([replace(ORDER, may_start=True)])
    assert world.phases == {LEASE: LeasePhase.RUNNING}
    [keeper] = world.keepers
    assert keeper.command[-2:] == ["keep", str(world.files().folder)]
    assert keeper.options["start_new_session"]
    assert keeper.options["env"]["BOX_LEASE"] == LEASE
    start = (world.files().folder / "start.json").read_text()
    assert world.files().proof.read_text() not in start
    world.table.obey([replace(ORDER, may_start=True)])
    assert len(world.keepers) == 1


def test_the_next_daemon_continues_where_the_last_was_killed(world):
    world.table.obey([ORDER])
    world.renew()
    assert world.phases == {LEASE: LeasePhase.RECORDED}
    world.begin()
    world.renew()
    world.table.obey([replace(ORDER, may_start=True)])
    assert world.phases == {LEASE: LeasePhase.RUNNING}
    assert len(world.keepers) == 1
    [descriptor] = world.table.watched()
    os.close(descriptor)


def test_folders_that_are_no_lease_are_removed_and_never_reported(world):
    (world.folder.leases / "lease_half").mkdir()
    (world.folder.leases / "lease_half" / "proof").write_text("x")
    world.renew()
    assert list(world.folder.leases.iterdir()) == []
    world.table.obey([replace(ORDER, lease="../../etc"), replace(ORDER, lease="lease_x")])
    assert world.phases == {}


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.EIO, errno.ENOMEM])
def test_a_record_that_cannot_be_read_at_the_moment_is_kept_and_loaded_later(world, monkeypatch, number):
    world.table.obey([ORDER])

    def refuse(path):
        raise OSError(number, os.strerror(number), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(lease_files, "read_json", refuse)
        with pytest.raises(OSError, match=re.escape(os.strerror(number))):
            world.renew()
    world.table.load()
    assert world.phases == {LEASE: LeasePhase.RECORDED}


class Refusing:
    """Reading of JSON that the machine refuses for files of some names."""

    def __init__(self, monkeypatch, *names, number=errno.EIO):
        self.names, self.number, self.real = set(names), number, lease_files.read_json
        monkeypatch.setattr(lease_files, "read_json", self)

    def __call__(self, path):
        if path.name in self.names or f"{path.parent.name}/{path.name}" in self.names:
            raise OSError(self.number, os.strerror(self.number), str(path))
        return self.real(path)


@pytest.fixture
def later(monkeypatch):
    """A function that lets time pass for the table."""
    late, now = [0.0], module.time.monotonic
    monkeypatch.setattr(module.time, "monotonic", lambda: now() + late[0])

    def let_pass(seconds):
        late[0] += seconds

    return let_pass


def renew_late(world, later):
    """Start the daemon again on records that stay unreadable: it asks the service after a few seconds."""
    with pytest.raises(OSError, match="Input/output"):
        world.renew()
    with pytest.raises(OSError, match="Input/output"):
        world.table.load()
    later(module.LOAD_LIMIT_S + 1)
    world.table.load()


def test_a_record_that_stays_unreadable_does_not_silence_the_other_leases(world, monkeypatch, later, capsys):
    world.table.obey([ORDER, replace(ORDER, lease=OTHER, index=1)])
    refusing = Refusing(monkeypatch, f"{LEASE}/record.json")
    renew_late(world, later)
    orders = [replace(ORDER, may_start=True), replace(ORDER, lease=OTHER, index=1, may_start=True)]
    world.table.obey(orders)
    assert world.phases == {LEASE: LeasePhase.PLACED, OTHER: LeasePhase.RUNNING}
    assert len(world.keepers) == 1, "the unreadable lease may run already"
    assert "Input/output error" in world.table.reports()[-1].why
    assert capsys.readouterr().err.count("it is tried again") == 1
    refusing.names.clear()
    world.table.look()
    assert world.phases[LEASE] is LeasePhase.RECORDED


def test_an_unreadable_lease_is_gone_only_by_order_and_once_no_process_of_it_is_left(world, monkeypatch, later):
    world.begin()
    Refusing(monkeypatch, "record.json")
    renew_late(world, later)
    world.table.obey([])
    world.table.obey([replace(ORDER, wish=Wish.END)])
    assert (world.phases, world.ended) == ({LEASE: LeasePhase.PLACED}, []), "the refusal may pass"
    later(61)
    world.left = 1
    world.table.obey([replace(ORDER, wish=Wish.END)])
    assert world.phases == {LEASE: LeasePhase.PLACED}
    world.left = 0
    world.table.obey([replace(ORDER, wish=Wish.END)])
    [report] = world.table.reports()
    assert report.phase is LeasePhase.GONE
    assert report.why.startswith("it was ended by the service; its files cannot be used: [Errno 5] Input/output error")
    world.table.obey([])
    assert world.table.reports() == ()


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE, errno.EACCES])
@pytest.mark.parametrize("name", ["keeper.json", "boot.json", "ended.json"])
def test_a_lease_whose_state_cannot_be_read_is_not_started_again(world, monkeypatch, later, name, number):
    world.begin()
    world.renew()
    refusing = Refusing(monkeypatch, name, number=number)
    world.table.look()
    world.table.obey([replace(ORDER, may_start=True)])
    if name == "boot.json":  # a readable one names this process, which would get the signal
        world.table.obey([replace(ORDER, may_start=True, wish=Wish.NOTICE)])
    assert world.phases == {LEASE: LeasePhase.PLACED}
    for descriptor in world.table.watched():
        os.close(descriptor)
    assert len(world.keepers) == 1
    refusing.names.clear()
    assert world.phases == {LEASE: LeasePhase.RUNNING}
    refusing.names.add(name)
    assert world.phases == {LEASE: LeasePhase.RUNNING}, "what was known last"
    world.table.obey([replace(ORDER, wish=Wish.END)])
    assert world.phases == {LEASE: LeasePhase.RUNNING}
    later(61)
    world.table.obey([replace(ORDER, wish=Wish.END)])
    assert world.phases == {LEASE: LeasePhase.GONE}


def test_a_removed_box_ends_leases_whose_files_stay_unreadable(world, monkeypatch, later):
    world.begin()
    Refusing(monkeypatch, "record.json", "keeper.json")
    renew_late(world, later)
    assert world.table.end_all(0.0) == 1
    later(61)
    assert world.table.end_all(0.0) == 0


def test_a_lease_with_a_damaged_record_is_set_aside(world, capsys):
    world.table.obey([ORDER])
    (world.files().folder / "record.json").write_text("{")
    world.renew()
    assert world.phases == {}
    assert list(world.folder.leases.iterdir()) == []
    assert {path.name for path in (world.folder.set_aside / LEASE).iterdir()} == {"record.json"}
    assert "its record is damaged; it was moved to" in capsys.readouterr().err


def test_a_lease_that_the_service_no_longer_names_is_ended_and_forgotten(world):
    world.begin()
    world.lose()
    world.table.obey([])
    assert world.ended == [LEASE]
    assert world.phases == {}
    assert list(world.folder.leases.iterdir()) == []


def test_a_lease_that_cannot_be_ended_is_kept_and_retried(world):
    world.begin()
    world.lose()
    world.left = 1
    world.table.obey([replace(ORDER, wish=Wish.END)])
    assert world.phases == {LEASE: LeasePhase.RUNNING}
    assert world.table.is_moving
    world.left = 0
    world.table.obey([replace(ORDER, wish=Wish.END)])
    assert world.phases == {LEASE: LeasePhase.GONE}
    assert not world.table.is_moving
    assert world.table.end_all(0.0) == 0


def test_a_lease_without_a_record_is_searched_for_and_reported_as_gone(world):
    world.table.obey([replace(ORDER, wish=Wish.END)])
    [report] = world.table.reports()
    assert (report.phase, report.why) == (LeasePhase.GONE, "box1 has no record of it")
    assert world.ended == [LEASE]
    world.table.obey([])
    assert world.table.reports() == ()


def test_a_reboot_ends_leases_without_touching_a_process(world):
    world.begin()
    world.renew("boot-2")
    world.table.look()
    [report] = world.table.reports()
    assert (report.phase, report.why) == (LeasePhase.GONE, "box1 was started again")
    assert world.ended == []


def test_a_lease_whose_keeper_was_killed_is_cleaned_up_and_reported(world):
    world.begin()
    world.lose()
    world.left = 2
    world.table.look()
    assert world.phases == {LEASE: LeasePhase.RUNNING}, "something is left"
    world.left = 0
    world.table.look()
    [report] = world.table.reports()
    assert (report.phase, report.why) == (LeasePhase.GONE, "the process that kept its agent was killed")


def test_a_keeper_that_could_not_start_ends_its_lease(world):
    world.table.obey([ORDER])
    world.table.obey([replace(ORDER, may_start=True)])
    world.keepers[0].code = 1
    world.table.look()
    [report] = world.table.reports()
    assert report.phase is LeasePhase.GONE
    assert report.why.startswith("its keeper could not be started: exit code 1; see ")


def test_a_second_keeper_leaves_the_lease_to_the_first(world):
    world.table.obey([ORDER])
    world.table.obey([replace(ORDER, may_start=True)])
    world.keepers[0].code = EXIT_KEPT
    world.table.look()
    assert world.phases == {LEASE: LeasePhase.RECORDED}
    me = ProcessId.of(os.getpid())
    world.files().write_keeper(KeptProcess(pid=me.pid, started=me.started))
    assert world.phases == {LEASE: LeasePhase.RUNNING}


def test_a_keeper_that_never_records_itself_is_killed(world, monkeypatch):
    world.table.obey([ORDER])
    world.table.obey([replace(ORDER, may_start=True)])
    now = module.time.monotonic()
    monkeypatch.setattr(module.time, "monotonic", lambda: now + START_LIMIT_S + 1)
    world.table.look()
    assert world.keepers[0].was_killed


def test_a_boot_that_cannot_be_fetched_is_retried_and_logged(world):
    def away(digest):
        raise OSError("boot bbb could not be fetched: 503")

    known, world.source = world.source, away
    world.table.obey([ORDER])
    world.table.obey([replace(ORDER, may_start=True)])
    [report] = world.table.reports()
    assert (report.phase, report.why) == (LeasePhase.RECORDED, "boot bbb could not be fetched: 503")
    world.source = known
    world.table.obey([replace(ORDER, may_start=True)])
    [report] = world.table.reports()
    assert (report.phase, report.why) == (LeasePhase.RUNNING, "")


def test_a_record_that_cannot_be_written_does_not_affect_other_leases(world, monkeypatch):
    real = LeaseFiles.make

    def full(files, order, boot_id):
        if order.lease == LEASE:
            raise OSError(28, "No space left on device")
        return real(files, order, boot_id)

    monkeypatch.setattr(LeaseFiles, "make", full)
    world.table.obey([ORDER, replace(ORDER, lease=OTHER)])
    assert world.phases == {OTHER: LeasePhase.RECORDED}


def test_a_notice_is_sent_once_in_the_life_of_a_lease(world, monkeypatch):
    sent = []
    monkeypatch.setattr(module.signal, "pidfd_send_signal", lambda descriptor, number: sent.append(number))
    noticed = replace(ORDER, wish=Wish.NOTICE, may_start=True)
    world.table.obey([noticed])
    assert sent == [], "nothing runs yet"
    world.begin()
    world.table.obey([noticed])
    world.renew()
    world.table.obey([noticed])
    assert sent == [module.signal.SIGTERM]


def test_a_process_that_reused_an_agents_pid_gets_no_notice(world, monkeypatch):
    sent = []
    monkeypatch.setattr(module.signal, "pidfd_send_signal", lambda descriptor, number: sent.append(number))
    world.begin()
    world.lose()
    world.table.obey([replace(ORDER, wish=Wish.NOTICE, may_start=True)])
    assert sent == []


def test_a_keeper_that_hangs_in_the_kernel_is_ended_later(world):
    world.table.obey([ORDER])
    world.table.obey([replace(ORDER, may_start=True)])
    (keeper,) = world.keepers
    keeper.hangs = True
    for _ in range(2):
        world.table.obey([replace(ORDER, wish=Wish.END)])
        assert (world.phases, keeper.was_killed) == ({LEASE: LeasePhase.RUNNING}, True)
    keeper.hangs = False
    world.table.obey([replace(ORDER, wish=Wish.END)])
    assert world.phases == {LEASE: LeasePhase.GONE}


def test_a_lease_whose_processes_cannot_be_listed_is_ended_later(world, monkeypatch):
    def fail(*arguments, **options):
        raise OSError(errno.EMFILE, "Too many open files")

    world.begin()
    world.lose()
    monkeypatch.setattr(module, "end_marked", fail)
    world.table.look()
    world.table.obey([])
    assert world.phases == {LEASE: LeasePhase.RUNNING}
    monkeypatch.setattr(module, "end_marked", world._end)
    world.table.look()
    assert world.phases == {LEASE: LeasePhase.GONE}


def test_a_look_that_fails_leaves_no_descriptor_open(world, monkeypatch):
    world.begin()
    monkeypatch.setattr(ProcessId, "is_alive", lambda process: (_ for _ in ()).throw(OSError(errno.EMFILE, "no")))
    before = len(os.listdir("/proc/self/fd"))
    assert world.table.watched() == []
    assert len(os.listdir("/proc/self/fd")) == before


def test_children_of_the_daemon_that_are_no_keepers_belong_to_no_lease(world, monkeypatch):
    seen = []
    world.table = LeaseTable(
        world.folder, CONFIG, world.folder.root / "node.pyz", "boot-1", lambda digest: None, others=lambda: (77,)
    )
    monkeypatch.setattr(module, "end_marked", lambda lease, known, own, *, limit_s: seen.append(own) or 0)
    world.table.obey([replace(ORDER, wish=Wish.END)])
    assert seen == [{77}]


def lose(world):
    world.begin()
    world.lose()
    world.table.look()


def fail_to_start(world):
    world.table.obey([ORDER])
    world.table.obey([replace(ORDER, may_start=True)])
    world.keepers[0].code = 1
    world.table.look()


def end(world):
    world.begin()
    world.lose()
    world.table.obey([replace(ORDER, wish=Wish.END)])


def boot_again(world):
    world.begin()
    world.renew("boot-2")
    world.table.look()


@pytest.mark.parametrize(
    ("happen", "why"),
    [
        (lose, "the process that kept its agent was killed"),
        (fail_to_start, "its keeper could not be started: exit code 1; see "),
        (end, "it was ended by the service"),
        (boot_again, "box1 was started again"),
    ],
)
def test_an_end_that_cannot_be_written_is_reported_and_written_later(world, monkeypatch, capsys, happen, why):
    real = lease_files.write_json

    def full(path, data):
        if path.name == "ended.json":
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, data)

    monkeypatch.setattr(lease_files, "write_json", full)
    happen(world)
    for _ in range(3):
        [report] = world.table.reports()
        assert (report.phase, report.why[: len(why)]) == (LeasePhase.GONE, why)
        world.table.look()
        world.table.obey([replace(ORDER, may_start=True)])
    assert len(world.keepers) == 1, "an ended lease stays ended"
    assert capsys.readouterr().err.count("No space left on device; it is tried again") == 1
    assert not world.table.is_moving
    monkeypatch.setattr(lease_files, "write_json", real)
    world.table.look()
    assert world.files().read_end().startswith(why)
    assert world.phases == {LEASE: LeasePhase.GONE}
    assert "its files can be used again" in capsys.readouterr().err
    world.table.obey([])
    assert world.table.reports() == ()
