"""A host's channels from the cache: through an overlay or as a copy, and the jobs for which they are kept."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from clary.agent.artifacts import upload_results
from clary.agent.channels.cache import ChannelCache, keeping
from clary.agent.supervisor import host_channels
from clary.agent.supervisor.host_channels import HostChannels
from clary.base import disk_space
from clary.contract.agent_protocol import UploadRole
from clary.contract.launch_plan import Channel, Isolation, Output
from clary.contract.ml_tree import MlTree
from clary.testing.fake_object_store import FakeObjectStore
from clary.testing.launch_plans import make_plan

MIB = 1 << 20
TRAIN = Channel(name="train", s3_uri="s3://b/data")


@pytest.fixture
def store():
    store = FakeObjectStore()
    store.put_bytes("b", "data/a", b"a")
    store.put_bytes("b", "data/sub/b", b"b")
    return store


@pytest.fixture
def make_host(tmp_path, store, monkeypatch):
    """Return a function that makes a host's channels; overlays work unless the test gives a reason against them."""
    made = []

    def build(*, refusal=None, name="algo-1", **changes):
        monkeypatch.setattr(host_channels, "why_no_overlay", lambda folder: refusal)
        plan = make_plan(**{"cache_folder": str(tmp_path / "cache"), "channel_cache_bytes": MIB, **changes})
        folder = tmp_path / name
        tree = MlTree(folder / "ml")
        tree.channel("train").mkdir(parents=True)
        host = HostChannels(plan, tree=tree, host_folder=folder, stop=threading.Event())
        made.append(host)
        return host, tree

    yield build
    for host in made:
        host.close()


def fetch(host, store, channel=TRAIN):
    return host.fetch(channel, store=store, host_index=0, num_hosts=1)


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def num_removable(tmp_path) -> int:
    """Return the number of snapshots that no host holds."""
    cache = ChannelCache(tmp_path / "cache" / "channels", limit_bytes=1, endpoint_url="")
    cache.tidy()
    return sum(1 for path in (tmp_path / "cache" / "channels" / "snapshots").glob("*/*"))


def test_a_host_with_mounts_sees_the_cache_through_an_overlay(make_host, store):
    host, tree = make_host()
    fetch(host, store)
    (bind,) = host.binds()
    assert (bind.target, bind.overlay, bind.copied_otherwise, bind.read_only) == (
        "/opt/ml/input/data/train",
        True,
        True,
        False,
    )
    assert files(Path(bind.source)) == {"a": b"a", "sub/b": b"b"}
    assert files(tree.channel("train")) == {}
    assert host.summaries == ("channel train: 2 objects, 2 bytes: 0 from this machine's cache, 2 fetched",)


@pytest.mark.parametrize(
    "changes",
    [
        {"isolation": Isolation.PROCESSES},
        {"refusal": "mount overlay: Invalid argument"},
        {"hyperparameters": {"sagemaker_submit_directory": "/opt/ml/input/data/train/code"}},
        {"checkpoint_s3_uri": "s3://b/c", "checkpoint_local_path": "/opt/ml/input/data/train/checkpoints"},
        {"checkpoint_s3_uri": "s3://b/c", "checkpoint_local_path": "/opt/ml/input/./data/train/"},
        {"checkpoint_s3_uri": "s3://b/c", "checkpoint_local_path": "/opt/ml/input"},
    ],
)
def test_channels_that_the_agent_reads_or_no_overlay_can_show_are_copied(make_host, store, tmp_path, changes):
    host, tree = make_host(**changes)
    fetch(host, store)
    assert host.binds() == []
    assert files(tree.channel("train")) == {"a": b"a", "sub/b": b"b"}
    (tree.channel("train") / "a").write_bytes(b"changed")
    other, other_tree = make_host(name="algo-2", **changes)
    num_read = store.num_reads
    fetch(other, store)
    assert store.num_reads == num_read
    assert files(other_tree.channel("train")) == {"a": b"a", "sub/b": b"b"}
    assert num_removable(tmp_path) == 0  # a copy no longer needs the cache


def test_checkpoints_elsewhere_are_no_reason_to_copy(make_host, store):
    host, _ = make_host(checkpoint_s3_uri="s3://b/c", checkpoint_local_path="/opt/ml/input/data/train-2")
    fetch(host, store)
    assert len(host.binds()) == 1


def test_support_for_overlays_is_tested_once_per_boot_of_the_machine(make_host, store, monkeypatch):
    fetch(make_host()[0], store)

    def never(folder):
        raise AssertionError("asked again")

    host, _ = make_host(name="algo-2")
    monkeypatch.setattr(host_channels, "why_no_overlay", never)
    fetch(host, store)
    assert len(host.binds()) == 1


def test_a_refusal_of_overlays_is_remembered_for_one_attempt_only(make_host, store, monkeypatch):
    asked = []

    def refuse(folder):
        asked.append(folder)
        if len(asked) == 2:
            raise OSError(28, "No space left on device")
        return "trying it out took longer than 20 s"

    for number in (1, 2):
        host, tree = make_host(name=f"algo-{number}")
        monkeypatch.setattr(host_channels, "why_no_overlay", refuse)
        fetch(host, store)
        fetch(host, store)
        assert host.binds() == []
        assert files(tree.channel("train")) == {"a": b"a", "sub/b": b"b"}
        assert len(asked) == number
    host, _ = make_host(name="algo-3")
    fetch(host, store)
    assert len(host.binds()) == 1


def test_a_snapshot_is_held_until_the_host_closes(make_host, store, tmp_path):
    host, _ = make_host()
    fetch(host, store)
    fetch(host, store)  # the step is repeated
    assert num_removable(tmp_path) == 1
    host.close()
    assert num_removable(tmp_path) == 0


def model_of(host, tree, store) -> dict[str, bytes]:
    """Return the files of the model as a host uploads it, uncompressed, with every link followed."""
    tree.model.mkdir(parents=True, exist_ok=True)
    results = FakeObjectStore()
    output = Output(
        s3_output_path="s3://r/o", model_uri="s3://r/model/", output_uri="s3://r/data/", is_compressed=False
    )
    plan = make_plan(output=output)
    upload_results(UploadRole.LEAD, plan=plan, host=plan.hosts[0].name, tree=tree, store=results, mounts=host.mounts())
    return {key.removeprefix("model/"): data for (_, key), data in results.objects.items()}


def test_links_in_results_find_the_channel_after_the_program_and_the_tree_stays_as_it_is(make_host, store):
    host, tree = make_host()
    fetch(host, store)
    tree.model.mkdir(parents=True)
    (tree.model / "words").symlink_to("/opt/ml/input/data/train/a")
    (tree.model / "all").symlink_to("../input/data")
    assert model_of(host, tree, store) == {"words": b"a", "all/train/a": b"a", "all/train/sub/b": b"b"}
    assert files(tree.channel("train")) == {}


@pytest.mark.parametrize("renamed", ["input/data", "input"])
@pytest.mark.parametrize("place", ["link", "link above", "folder", "nothing"])
def test_nothing_is_written_through_a_link_in_place_of_a_channel(make_host, store, tmp_path, renamed, place):
    host, tree = make_host()
    fetch(host, store)
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "data" / "train").mkdir(parents=True)
    (elsewhere / "train").mkdir()
    (elsewhere / "secret").write_bytes(b"secret")
    kept = [snapshot.stat().st_nlink for snapshot in Path(host.binds()[0].source).rglob("*")]
    (tree.root / renamed).rename(tree.root / "old")
    if place == "link above":
        (tree.root / renamed).symlink_to(elsewhere)
    elif place != "nothing":
        tree.data.mkdir(parents=True)
        if place == "link":
            tree.channel("train").symlink_to(elsewhere)
        else:
            tree.channel("train").mkdir()
            (tree.channel("train") / "own").write_bytes(b"own")
    tree.model.mkdir(parents=True)
    for name in ("a", "own", "secret"):
        (tree.model / name).symlink_to(f"/opt/ml/input/data/train/{name}")
    expected = {"link": {"a": b"a"}, "folder": {"own": b"own"}}
    assert model_of(host, tree, store) == expected.get(place, {})
    assert files(elsewhere) == {"secret": b"secret"}
    assert [snapshot.stat().st_nlink for snapshot in Path(host.binds()[0].source).rglob("*")] == kept


class SmallDisk:
    """A disk of a few bytes, on which each file counts once for all its links."""

    def __init__(self, folder: Path, size_bytes: int) -> None:
        self._folder = folder
        self._size_bytes = size_bytes

    def free_bytes(self, path: Path) -> int:
        sizes = {path.stat().st_ino: path.stat().st_size for path in self._folder.rglob("*.bin") if path.is_file()}
        sizes |= {  # objects of the cache to which no tree has a link
            path.stat().st_ino: path.stat().st_size
            for path in self._folder.glob("cache/channels/objects/*/*/*")
            if path.is_file()
        }
        return self._size_bytes - sum(sizes.values())


@pytest.fixture
def small_disk(tmp_path, monkeypatch):
    def make(size_bytes):
        disk = SmallDisk(tmp_path, size_bytes)
        for module in (disk_space, keeping):
            monkeypatch.setattr(module, "free_bytes", disk.free_bytes)

    return make


def test_a_channel_that_the_disk_has_room_for_once_is_fetched_directly(make_host, store, small_disk):
    store.put_bytes("b", "big/x.bin", b"x" * 1000)
    small_disk(1500)
    host, tree = make_host(isolation=Isolation.PROCESSES)
    facts = fetch(host, store, Channel(name="train", s3_uri="s3://b/big"))
    assert facts.snapshot is None
    assert "1000 more bytes, and 1000 for a copy beside them, do not fit" in facts.summary
    assert files(tree.channel("train")) == {"x.bin": b"x" * 1000}
    assert store.num_reads == 1


def test_a_cached_channel_frees_its_objects_when_its_copy_does_not_fit(make_host, store, small_disk):
    store.put_bytes("b", "big/x.bin", b"x" * 1000)
    channel = Channel(name="train", s3_uri="s3://b/big")
    small_disk(5000)
    former, _ = make_host()
    fetch(former, store, channel)
    former.close()
    small_disk(1500)
    host, tree = make_host(isolation=Isolation.PROCESSES, name="algo-2")
    facts = fetch(host, store, channel)
    assert "fetched, not kept in this machine's cache: No space left on device" in facts.summary
    assert host.summaries == (facts.summary,)
    assert files(tree.channel("train")) == {"x.bin": b"x" * 1000}


@pytest.mark.parametrize("changes", [{"channel_cache_bytes": 1500}, {"isolation": Isolation.PROCESSES}, {}])
def test_unused_snapshots_are_evicted_to_make_room_for_a_channel(make_host, store, small_disk, changes):
    for name in ("former", "big"):
        store.put_bytes("b", f"{name}/x.bin", name.encode().ljust(1000))
    store.put_bytes("b", "big/y.bin", b"y".ljust(1000))
    former, _ = make_host(name="former")
    fetch(former, store, Channel(name="train", s3_uri="s3://b/former"))
    former.close()
    small_disk(2500)
    host, tree = make_host(**changes)
    fetch(host, store, Channel(name="train", s3_uri="s3://b/big"))
    seen = Path(host.binds()[0].source) if host.binds() else tree.channel("train")
    assert files(seen) == {"x.bin": b"big".ljust(1000), "y.bin": b"y".ljust(1000)}


def test_without_a_size_limit_or_a_cache_folder_nothing_is_kept(make_host, store, tmp_path):
    for number, changes in enumerate(({"channel_cache_bytes": 0}, {"cache_folder": ""})):
        host, tree = make_host(name=f"algo-{number}", **changes)
        fetch(host, store)
        assert files(tree.channel("train")) == {"a": b"a", "sub/b": b"b"}
        assert host.summaries == ("channel train: 2 objects, 2 bytes: fetched",)
    assert not (tmp_path / "cache").exists()
