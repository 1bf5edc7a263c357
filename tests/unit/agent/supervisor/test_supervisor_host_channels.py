"""How a host gets what the cache holds: by an overlay, as a copy, and for whom it is kept."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from clary.agent.channels.cache import ChannelCache
from clary.agent.supervisor import host_channels
from clary.agent.supervisor.host_channels import HostChannels
from clary.contract.launch_plan import Channel, Isolation
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
    """Build a host's channels; overlays are had unless the test says why not."""
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
    """Return how many snapshots nobody holds."""
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
def test_what_the_agent_reads_itself_and_what_no_overlay_can_show_is_copied(make_host, store, tmp_path, changes):
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
    assert num_removable(tmp_path) == 0  # a copy needs the cache no more


def test_checkpoints_elsewhere_are_no_reason_to_copy(make_host, store):
    host, _ = make_host(checkpoint_s3_uri="s3://b/c", checkpoint_local_path="/opt/ml/input/data/train-2")
    fetch(host, store)
    assert len(host.binds()) == 1


def test_whether_overlays_can_be_had_is_tried_out_once_while_the_machine_runs(make_host, store, monkeypatch):
    fetch(make_host()[0], store)

    def never(folder):
        raise AssertionError("asked again")

    host, _ = make_host(name="algo-2")
    monkeypatch.setattr(host_channels, "why_no_overlay", never)
    fetch(host, store)
    assert len(host.binds()) == 1


def test_a_snapshot_is_held_until_the_host_closes(make_host, store, tmp_path):
    host, _ = make_host()
    fetch(host, store)
    fetch(host, store)  # a step that is repeated
    assert num_removable(tmp_path) == 1
    host.close()
    assert num_removable(tmp_path) == 0


def test_links_in_results_find_the_channel_after_the_program(make_host, store):
    host, tree = make_host()
    fetch(host, store)
    tree.model.mkdir(parents=True)
    host.show_to_agent(tree.model, tree.output_data)
    assert files(tree.channel("train")) == {}
    (tree.model / "tokenizer").symlink_to("/opt/ml/input/data/train/a")
    host.show_to_agent(tree.model, tree.output_data)
    assert files(tree.channel("train")) == {"a": b"a", "sub/b": b"b"}


def test_without_a_bound_or_a_place_nothing_is_kept(make_host, store, tmp_path):
    for number, changes in enumerate(({"channel_cache_bytes": 0}, {"cache_folder": ""})):
        host, tree = make_host(name=f"algo-{number}", **changes)
        fetch(host, store)
        assert files(tree.channel("train")) == {"a": b"a", "sub/b": b"b"}
        assert host.summaries == ("channel train: 2 objects, 2 bytes: fetched",)
    assert not (tmp_path / "cache").exists()
