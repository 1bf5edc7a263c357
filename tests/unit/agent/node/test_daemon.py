"""The rounds of the daemon: it goes on asking the service when its machine refuses something."""

import errno
import itertools
import json
import os
import time

import pytest
from hard_trees import grow_hard_to_remove, plain_user_folder

from clary.agent.node import daemon as module
from clary.agent.node.box_folder import BoxConfig, BoxFolder, write_json
from clary.base.plain import to_plain
from clary.contract.box_protocol import BoxOrders, LeasePhase, LeaseReport


class FakeLine:
    """The service: it answers every request with the same orders, and ends the daemon after some."""

    is_open = True

    def __init__(self, world):
        self.world = world

    def ask(self, method, path, body, *, wait_s=0.0, watched=()):
        self.world.asked.append((time.monotonic(), body))
        self.world.others.append(self.world.daemon._table.others())
        if len(self.world.asked) == self.world.most:
            self.world.daemon._leaves = True
        return json.dumps(to_plain(BoxOrders(version=1))).encode()


class FakeTable:
    """The leases of the box, as the test wants them."""

    is_moving = False

    def __init__(self, *arguments, others=tuple):
        self.others, self.refuses, self.num_unread = others, False, 0

    def load(self):
        if self.num_unread:
            self.num_unread -= 1
            raise OSError(errno.EMFILE, "Too many open files")

    def look(self):
        self.obey(())

    def obey(self, orders):
        if self.refuses:
            raise OSError(errno.ENFILE, "Too many open files in system")

    def reports(self):
        return (LeaseReport(lease="lease_0123456789abcdef", phase=LeasePhase.RUNNING),)

    def watched(self):
        return []


class World:
    def __init__(self, root, **config):
        self.asked, self.others, self.most = [], [], 3
        folder = BoxFolder(root)
        write_json(folder.config, to_plain(BoxConfig(name="box1", url="https://head:1", machine="m" * 64, **config)))
        folder.token.write_text("t")
        archive = root / "node.pyz"
        archive.write_bytes(b"daemon")
        self.daemon = module.Daemon(folder, archive)


@pytest.fixture
def world(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ServiceLine", lambda *arguments: None)
    monkeypatch.setattr(module, "LeaseTable", FakeTable)
    monkeypatch.setattr(module, "adopt_orphans", lambda: None)
    monkeypatch.setattr(module.signal, "signal", lambda *arguments: None)
    monkeypatch.setattr(module.signal, "set_wakeup_fd", lambda *arguments, **options: None)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    world = World(tmp_path)
    world.daemon._line = FakeLine(world)
    return world


def write_tool(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_a_driver_that_does_not_answer_holds_up_no_request(world, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "FIRST_GPUS_S", 0.2)
    write_tool(tmp_path / "bin/nvidia-smi", "exec /bin/sleep 30")
    began_s = time.monotonic()
    world.daemon.run()
    assert len(world.asked) == 3
    assert time.monotonic() - began_s < 15
    assert all(world.others), "the tool belongs to no lease"
    assert [body["facts"]["gpus"] for _, body in world.asked] == [None] * 3, "they are not known yet"
    assert world.daemon._table.others() == ()


def test_the_gpus_that_the_driver_lists_are_reported(world, tmp_path):
    write_tool(tmp_path / "bin/nvidia-smi", "echo GPU-1")
    world.daemon.run()
    assert [body["facts"]["gpus"] for _, body in world.asked] == [["GPU-1"]] * 3


def test_a_machine_with_too_many_open_files_does_not_end_the_daemon(world, capsys):
    world.daemon._table.refuses = True
    world.daemon.run()
    assert len(world.asked) == 3
    assert capsys.readouterr().err.count("Too many open files in system; it is tried again") == 1


@pytest.mark.long(10)
def test_a_box_whose_lease_hangs_goes_on_asking(world, monkeypatch):
    monkeypatch.setattr(module, "MOVING_ASK_S", 0.3)
    world.daemon._table.is_moving = True
    world.most = 4
    world.daemon.run()
    pauses = [later - sooner for (sooner, _), (later, _) in zip(world.asked, world.asked[1:], strict=False)]
    assert max(pauses) < 3
    assert min(pauses) > 0.2


def test_a_full_disk_below_the_log_does_not_end_the_daemon(world, monkeypatch):
    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    world.daemon._table.refuses = True
    monkeypatch.setattr("builtins.print", full)
    world.daemon.run()
    assert len(world.asked) == 3


def test_a_removed_box_that_cannot_list_its_processes_tries_again(world, monkeypatch):
    def end_all(limit_s):
        ended.append(limit_s)
        if len(ended) == 1:
            raise OSError(errno.EMFILE, "Too many open files")
        return 0

    def refuse(*arguments, **options):
        raise module.Refused(module.GONE, "it was removed")

    ended = []
    world.daemon._table.end_all = end_all
    monkeypatch.setattr(world.daemon._line, "ask", refuse)
    world.daemon.run()
    assert len(ended) == 2
    assert not world.daemon._folder.root.exists()


def test_a_removed_box_leaves_nothing_of_killed_hosts_and_nothing_of_other_boxes_is_removed(world, monkeypatch):
    class Line:
        def ask(self, *arguments, **options):
            raise module.Refused(module.GONE, "it was removed")

    with plain_user_folder() as shared:
        monkeypatch.setenv("HOME", str(shared / "home"))
        own, former, others = (shared / place for place in ("disk/box1", "old-disk/box1", "disk/box2"))
        for place in (own, former, others):
            place.mkdir(parents=True)
        (shared / "home/.clary-node/box1").mkdir(parents=True)
        box = World(shared / "home/.clary-node/box1", scratch=str(own), former_scratch=(str(former),))
        grow_hard_to_remove(own)
        (box.daemon._folder.root / "scratch").mkdir()
        grow_hard_to_remove(box.daemon._folder.root / "scratch")
        box.daemon._table.end_all = lambda limit_s: 0
        box.daemon._line = Line()
        box.daemon.run()
        left = sorted(str(path.relative_to(shared)) for path in shared.rglob("*"))
    assert left == ["disk", "disk/box2", "home"]


def test_a_removed_box_leaves_others_alone_in_a_folder_that_boxes_shared_in_earlier_releases(
    world, tmp_path, monkeypatch
):
    class Line:
        def ask(self, *arguments, **options):
            raise module.Refused(module.GONE, "it was removed")

    monkeypatch.setattr("socket.gethostname", lambda: "box1")
    user = os.geteuid()
    shared, alone = tmp_path / f"disk/clary-node-{user}", tmp_path / f"own/clary-node-{user}"
    for place in (shared / "box1", shared / f"clary-{user}/box1/hosts", alone / f"clary-{user}/box1/hosts"):
        place.mkdir(parents=True)
    kept = (shared / "box2/clary-0/box2/hosts", shared / f"clary-{user}/box3/hosts")
    for place in kept:
        place.mkdir(parents=True)
    (tmp_path / "home/box1").mkdir(parents=True)
    box = World(tmp_path / "home/box1", scratch=str(shared / "box1"), former_scratch=(str(shared), str(alone)))
    box.daemon._table.end_all = lambda limit_s: 0
    box.daemon._line = Line()
    box.daemon.run()
    assert all(place.exists() for place in kept)
    assert not (shared / "box1").exists()
    assert not (shared / f"clary-{user}/box1").exists()
    assert list((tmp_path / "own").iterdir()) == []  # the owner's folder stays


def test_a_removed_box_that_cannot_end_its_leases_does_not_hammer_the_service(world, monkeypatch):
    def refuse(*arguments, **options):
        asked.append(time.monotonic())
        raise module.Refused(module.GONE, "it was removed")

    def end_all(limit_s):
        if len(asked) < 3:
            raise OSError(errno.EMFILE, "Too many open files")
        return 0

    asked = []
    world.daemon._table.end_all = end_all
    monkeypatch.setattr(world.daemon._line, "ask", refuse)
    monkeypatch.setattr(module, "REFUSED_PAUSE_S", 0.3)
    world.daemon.run()
    assert len(asked) == 3
    assert min(later - sooner for sooner, later in itertools.pairwise(asked)) >= 0.3


@pytest.mark.parametrize("method", ["reports", "watched"])
def test_leases_that_cannot_be_told_or_watched_at_the_moment_do_not_end_the_daemon(world, monkeypatch, method):
    known, refusals = getattr(world.daemon._table, method), [OSError(errno.EMFILE, "Too many open files")] * 2

    def refuse():
        if refusals:
            raise refusals.pop()
        return known()

    monkeypatch.setattr(module, "REFUSED_PAUSE_S", 0.01)
    monkeypatch.setattr(world.daemon._table, method, refuse)
    world.daemon.run()
    assert len(world.asked) == 3
    assert refusals == []


def test_no_lease_is_reported_before_all_records_could_be_read(world, monkeypatch, capsys):
    monkeypatch.setattr(module, "LOAD_PAUSE_S", 0.01)
    world.daemon._table.num_unread = 2
    world.daemon.run()
    assert world.daemon._table.num_unread == 0
    assert len(world.asked) == world.most
    assert capsys.readouterr().err.count("this machine refuses: [Errno 24] Too many open files") == 1
