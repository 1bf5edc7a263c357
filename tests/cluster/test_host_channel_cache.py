"""Snapshots of the channel cache in hosts: a host changes its own view, never the cache; root and user namespace."""

import os
import threading
from pathlib import Path

import pytest
from host_world import DEADLINE_S, NOBODY, shell
from host_worlds import ISOLATED, world_of

from clary.agent.channels.cache import ChannelCache
from clary.agent.channels.selection import select_objects
from clary.agent.host import kernel
from clary.agent.host.overlay_support import why_no_overlay
from clary.agent.host.sandbox import Bind
from clary.agent.supervisor.host_channels import HostChannels
from clary.contract.launch_plan import Channel, Isolation
from clary.contract.ml_tree import MlTree
from clary.testing.fake_object_store import FakeObjectStore
from clary.testing.launch_plans import make_plan

TARGET = "/opt/ml/input/data/train"
DISK_BYTES = 10 << 20
# Changes that scripts make to their data: unpack, append, replace, move, delete, change permissions and times.
SCRIBBLE = f"""
cd {TARGET} && echo more >> a && echo new > b.new && mv b.new b && rm sub/c && mkdir unpacked && echo x > unpacked/x &&
chmod 600 a && touch -d 2001-01-01 d && ln d e && truncate -s 0 d && rm -r empty && mv sub moved && cat a b && ls
"""


world = world_of(ISOLATED)


@pytest.fixture
def snapshot(world):
    """A snapshot as an agent makes it, inside a folder that programs do not see."""
    store = FakeObjectStore()
    for key in ("a", "b", "sub/c", "d", "empty/"):
        store.put_bytes("b", f"data/{key}", b"" if key.endswith("/") else f"{key}\n".encode())
    channel = Channel(name="train", s3_uri="s3://b/data")
    selection = select_objects(channel, store=store)
    home = world.folder("home")
    cache = ChannelCache(home / "cache" / "channels", limit_bytes=1 << 20, endpoint_url="http://127.0.0.1:1")
    made = cache.snapshot(selection.objects, selection.folders, channel=channel, store=store)
    if world.mode == "user" and os.geteuid() == 0:  # an agent of that user would own it
        for path in (home, *home.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
    yield made
    made.release()


def facts_of(folder: Path) -> dict[str, tuple[object, ...]]:
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if path.is_file() else None
        found[str(path.relative_to(folder))] = (status.st_mode, status.st_ino, status.st_mtime_ns, content)
    return found


def bind_of(snapshot, **fields):
    return Bind(source=str(snapshot.path), target=TARGET, overlay=True, copied_otherwise=True, **fields)


def test_a_program_may_change_its_channel_and_the_cache_stays_as_it_is(world, snapshot):
    before = facts_of(snapshot.path)
    home = snapshot.path.parents[4]
    for _ in range(2):  # the second host does not see the first host's changes
        sandbox = world.sandbox(binds=(bind_of(snapshot),), hidden_folders=(str(home),))
        output = world.run(
            f"{SCRIBBLE.strip()}; ls {home} 2>/dev/null; ls {snapshot.path} 2>/dev/null",
            sandbox=sandbox,
        )
        assert output == "a\nmore\nnew\na\nb\nd\ne\nmoved\nunpacked\n"
        assert facts_of(snapshot.path) == before
        assert list((Path(sandbox.ml_folder) / "input" / "data" / "train").iterdir()) == []


def test_two_hosts_change_one_snapshot_at_once(world, snapshot):
    before = facts_of(snapshot.path)
    script = f"cd {TARGET}; for i in 1 2 3 4 5 6 7 8; do echo $0$i >> a; done; cat a"
    started = [world.start(shell(script), sandbox=world.sandbox(binds=(bind_of(snapshot),))) for _ in range(2)]
    for program, listener in started:
        assert program.wait(DEADLINE_S).exits[0].exit_code == 0
        assert listener.text().count("\n") == 9
    assert facts_of(snapshot.path) == before


def test_this_machine_has_overlays(world):
    assert why_no_overlay(world.folder("probe")) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to lay an overlay")
def test_without_overlays_the_host_gets_a_copy(world, snapshot):
    merged, lower, upper, work = (world.folder(f"stack/{name}") for name in ("merged", "lower", "upper", "work"))
    kernel.mount(
        "overlay", str(merged), kind="overlay", options=f"lowerdir={lower},upperdir={upper},workdir={work},xino=off"
    )
    try:
        # The kernel accepts no folder on an overlay as the upper layer of another overlay.
        stacked = world.folder("stack/merged/host")
        assert "overlay" in why_no_overlay(stacked)
        before = facts_of(snapshot.path)
        sandbox = world.sandbox(folder=stacked, binds=(bind_of(snapshot),))
        program, listener = world.start(shell(SCRIBBLE), sandbox=sandbox)
        assert program.wait(DEADLINE_S).exits[0].exit_code == 0, listener.text()
        assert not [sentence for sentence in program.not_isolated if TARGET in sentence]
        program.close()
        assert facts_of(snapshot.path) == before
        assert (Path(sandbox.ml_folder) / "input" / "data" / "train" / "unpacked" / "x").exists()
    finally:
        kernel.unmount(str(merged), flags=kernel.MNT_DETACH)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a disk")
@pytest.mark.parametrize("num_channels_before", [0, 1])
def test_a_channel_that_fits_a_small_disk_only_once_does_not_fail_the_job(world, num_channels_before):
    disk = world.folder("disk")
    kernel.mount("tmpfs", str(disk), kind="tmpfs", options=f"size={DISK_BYTES}")
    try:
        store = FakeObjectStore()
        for number in range(num_channels_before + 1):
            store.put_bytes("b", f"{number}/data.bin", bytes([number]) * (DISK_BYTES * 6 // 10))
        for number in range(num_channels_before + 1):
            plan = make_plan(
                cache_folder=str(disk / "cache"),
                channel_cache_bytes=DISK_BYTES,
                # Only the last channel is copied; the channels before it are no longer in use.
                isolation=Isolation.PROCESSES if number == num_channels_before else Isolation.NAMESPACES,
            )
            folder = disk / f"host-{number}"
            folder.mkdir()
            tree = MlTree(folder / "ml")
            host = HostChannels(plan, tree=tree, host_folder=folder, stop=threading.Event())
            channel = Channel(name="train", s3_uri=f"s3://b/{number}")
            try:
                facts = host.fetch(channel, store=store, host_index=0, num_hosts=1)
            finally:
                host.close()
        assert "not kept in this machine's cache" in facts.summary
        assert (tree.channel("train") / "data.bin").read_bytes() == store.objects["b", f"{number}/data.bin"]
    finally:
        kernel.unmount(str(disk), flags=kernel.MNT_DETACH)
