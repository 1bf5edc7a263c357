"""Channels fetched from a store in memory: the files of each host, their paths, and refusals."""

from __future__ import annotations

import errno
import gzip
import json
import os
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clary.agent.channels import ChannelObject, Selection, fetch_channel, select_objects
from clary.base import disk_space
from clary.base.errors import AgentError, ClaryError, Fault, ObjectStoreError
from clary.contract.launch_plan import Channel, InputMode
from clary.contract.ml_tree import MlTree
from clary.testing.fake_object_store import FakeObjectStore


@pytest.fixture
def store():
    return FakeObjectStore()


@pytest.fixture
def tree(tmp_path):
    return MlTree(tmp_path / "ml")


def make_channel(uri: str | None = "s3://b/data", **fields) -> Channel:
    return Channel(name=fields.pop("name", "train"), s3_uri=uri, **fields)


def fetch(channel: Channel, store: FakeObjectStore, tree: MlTree, host_index: int = 0, num_hosts: int = 1):
    return fetch_channel(channel, store=store, tree=tree, host_index=host_index, num_hosts=num_hosts)


def files(tree: MlTree, name: str = "train") -> dict[str, bytes]:
    folder = tree.channel(name)
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


def fill(store: FakeObjectStore, *keys: str) -> None:
    for key in keys:
        store.put_bytes("b", key, f"at {key}".encode())


def refusal(channel: Channel, store: FakeObjectStore, tree: MlTree) -> str:
    with pytest.raises(ClaryError) as caught:
        fetch(channel, store, tree)
    assert caught.value.fault is Fault.USER
    return caught.value.message


@pytest.mark.parametrize("uri", ["s3://b/input/code", "s3://b/input/code/"])
def test_prefix_with_and_without_slash_is_the_same_folder(store, tree, uri):
    fill(store, "input/code/a.py", "input/code/sub/b.py", "input/other/c.py")
    facts = fetch(make_channel(uri), store, tree)
    assert files(tree) == {"a.py": b"at input/code/a.py", "sub/b.py": b"at input/code/sub/b.py"}
    assert facts.num_objects == 2
    assert facts.size_bytes == len(b"at input/code/a.py" + b"at input/code/sub/b.py")
    assert facts.notes == ()


def test_key_of_an_object_is_that_object_alone_under_its_base_name(store, tree):
    fill(store, "data/train.csv", "data/train.csv.bak", "data/train.csv/odd")
    fetch(make_channel("s3://b/data/train.csv"), store, tree)
    assert files(tree) == {"train.csv": b"at data/train.csv"}


def test_prefix_that_ends_within_a_name_matches_longer_names_with_a_note(store, tree):
    fill(store, "in/train/x", "in/train_extra/y")
    facts = fetch(make_channel("s3://b/in/train"), store, tree)
    assert set(files(tree)) == {"x", "_extra/y"}
    assert "in/train_extra/y" in facts.notes[0]


def test_whole_bucket_is_a_channel(store, tree):
    fill(store, "x", "d/y")
    for uri in ("s3://b", "s3://b/"):
        fetch(make_channel(uri), store, tree)
        assert set(files(tree)) == {"x", "d/y"}


def test_keys_that_end_in_a_slash_are_folders(store, tree):
    fill(store, "data/empty/", "data/full/x", "data/")
    facts = fetch(make_channel(), store, tree)
    assert (tree.channel("train") / "empty").is_dir()
    assert set(files(tree)) == {"full/x"}
    assert facts.num_objects == 1


def test_double_slashes_count_as_one(store, tree):
    fill(store, "data//a//b")
    fetch(make_channel(), store, tree)
    assert set(files(tree)) == {"a/b"}


def test_no_objects_is_an_error_with_the_real_services_message(store, tree):
    fill(store, "other/x", "data/only-a-folder/")
    message = refusal(make_channel("s3://b/data"), store, tree)
    assert message.startswith('No S3 objects found under S3 URL "s3://b/data" given in input data source. ')
    assert "(us-west-2)" in message


@pytest.mark.parametrize(
    "key",
    [
        "data/../../evil",
        "data/..",
        "data/a/./b",
        "data/nul\0byte",
        "data/" + "n" * 256,
        "data/" + "é" * 128,
        "data/" + "/".join(["d" * 200] * 20),
    ],
)
def test_hostile_keys_are_refused_by_name_and_nothing_is_written(store, tree, key, tmp_path):
    fill(store, "data/fine", key)
    message = refusal(make_channel(), store, tree)
    assert ascii(key) in message
    assert not tree.channel("train").exists()
    assert os.listdir(tmp_path) == []


def test_key_that_is_a_file_and_a_folder_is_refused_by_name(store, tree):
    fill(store, "data/f", "data/f/g")
    message = refusal(make_channel(), store, tree)
    assert "'data/f'" in message
    assert "'data/f/g'" in message
    store.objects.clear()
    fill(store, "data/f", "data/f/")
    assert "also a folder" in refusal(make_channel(), store, tree)


def test_two_keys_of_one_file_are_refused(store, tree):
    fill(store, "data/a/b", "data/a//b")
    assert "the same file" in refusal(make_channel(), store, tree)


@pytest.mark.parametrize("name", ["..", ".", "a/b"])
def test_channel_name_that_is_no_folder_is_refused(store, tree, name):
    fill(store, "data/x")
    assert "rename" in refusal(make_channel(name=name), store, tree)


def test_unicode_and_odd_names_are_kept(store, tree):
    keys = ["ünï.txt", "with space", "per%20cent", "-rf", "a\nb", "*"]
    fill(store, *(f"data/{key}" for key in keys))
    fetch(make_channel(), store, tree)
    assert set(files(tree)) == set(keys)


def put_manifest(store: FakeObjectStore, entries: object) -> Channel:
    store.put_bytes("b", "m/list.manifest", json.dumps(entries).encode())
    return make_channel("s3://b/m/list.manifest", s3_data_type="ManifestFile")


def test_manifest_names_objects_relative_to_its_prefix(store, tree):
    fill(store, "data/a", "data/sub/b", "data/not-listed")
    facts = fetch(put_manifest(store, [{"prefix": "s3://b/data/"}, "a", "sub/b", "a"]), store, tree)
    assert set(files(tree)) == {"a", "sub/b"}
    assert "1 repeated" in facts.notes[0]


@pytest.mark.parametrize(
    "entries", [{}, [], ["a"], [{"prefix": 1}], [{"prefix": "s3://b/data/"}, 7], [{"prefix": "s3://b/"}, "d/"], "text"]
)
def test_manifests_of_another_shape_are_refused(store, tree, entries):
    refusal(put_manifest(store, entries), store, tree)


def test_manifest_that_is_no_json_or_not_there_is_refused(store, tree):
    store.put_bytes("b", "m/list.manifest", b"{")
    channel = make_channel("s3://b/m/list.manifest", s3_data_type="ManifestFile")
    assert "not JSON" in refusal(channel, store, tree)
    store.delete("b", "m/list.manifest")
    assert "404" in refusal(channel, store, tree)


def test_manifest_with_a_missing_object_names_it(store, tree):
    assert "data/gone" in refusal(put_manifest(store, [{"prefix": "s3://b/data/"}, "gone"]), store, tree)


def test_manifest_cannot_lead_out_of_the_channel(store, tree):
    fill(store, "data/../evil")
    assert ".." in refusal(put_manifest(store, [{"prefix": "s3://b/data/"}, "../evil"]), store, tree)


def test_manifest_nested_too_deep_is_refused_by_name(store, tree):
    store.put_bytes("b", "m/list.manifest", b"[" * 1_000_000)
    said = refusal(make_channel("s3://b/m/list.manifest", s3_data_type="ManifestFile"), store, tree)
    assert "s3://b/m/list.manifest" in said
    assert "nested too deep" in said


@pytest.mark.parametrize("mode", list(InputMode))
@pytest.mark.parametrize(("prefix", "entry"), [("data/", "../evil"), ("data/../", "evil"), ("data/", "./evil")])
def test_manifest_names_no_place_outside_its_prefix_in_any_mode(store, tree, mode, prefix, entry):
    fill(store, prefix + entry, "evil")
    channel = replace(put_manifest(store, [{"prefix": f"s3://b/{prefix}"}, entry]), input_mode=mode)
    assert 'a part of it is "." or ".."' in refusal(channel, store, tree)


def test_augmented_manifests_are_refused_by_name(store, tree):
    assert "AugmentedManifestFile" in refusal(make_channel(s3_data_type="AugmentedManifestFile"), store, tree)


def selection_of(keys: list[str]) -> Selection:
    return Selection(
        objects=tuple(ChannelObject(bucket="b", key=key, path=(key,), size_bytes=1) for key in sorted(keys))
    )


@given(
    keys=st.lists(st.text(min_size=1, max_size=5), unique=True, max_size=40),
    num_hosts=st.integers(1, 12),
    seed=st.one_of(st.none(), st.integers(0, 9)),
    epoch=st.integers(0, 3),
)
def test_shards_share_out_every_object_exactly_once(keys, num_hosts, seed, epoch):
    channel = make_channel(s3_data_distribution="ShardedByS3Key", shuffle_seed=seed)
    selection = selection_of(keys)
    shards = [
        selection.shard(channel, host_index=index, num_hosts=num_hosts, epoch=epoch) for index in range(num_hosts)
    ]
    shared_out = [item.key for shard in shards for item in shard]
    assert sorted(shared_out) == sorted(keys)
    assert max(map(len, shards)) - min(map(len, shards)) <= 1
    if seed is None:
        assert all(list(shard) == sorted(shard, key=lambda item: item.key) for shard in shards)


def test_replicated_channels_are_fetched_whole_by_every_host():
    selection = selection_of(["a", "b", "c"])
    assert selection.shard(make_channel(), host_index=2, num_hosts=3) == selection.objects


def test_shuffled_epochs_differ_and_repeat_for_the_same_seed():
    channel = make_channel(shuffle_seed=5)
    selection = selection_of([str(number) for number in range(50)])
    first, second = (selection.shard(channel, host_index=0, num_hosts=1, epoch=epoch) for epoch in (0, 1))
    assert first != second
    assert first == selection.shard(channel, host_index=0, num_hosts=1, epoch=0)


def test_sharded_channel_writes_this_hosts_part_only(store, tree):
    fill(store, *(f"data/{number}" for number in range(5)))
    channel = make_channel(s3_data_distribution="ShardedByS3Key")
    facts = fetch(channel, store, tree, host_index=1, num_hosts=2)
    assert set(files(tree)) == {"1", "3"}
    assert facts.num_objects == 2


def test_host_without_an_object_has_an_empty_folder_and_a_note(store, tree):
    fill(store, "data/only")
    channel = make_channel(s3_data_distribution="ShardedByS3Key")
    facts = fetch(channel, store, tree, host_index=1, num_hosts=2)
    assert tree.channel("train").is_dir()
    assert files(tree) == {}
    assert "gets no object" in facts.notes[0]


def test_gzip_channels_arrive_unpacked_without_their_suffix(store, tree):
    for key in ("data/a.csv.gz", "data/b", "data/c.tgz", "data/.gz"):
        store.put_bytes("b", key, gzip.compress(key.encode(), mtime=0))
    facts = fetch(make_channel(compression="Gzip"), store, tree)
    assert files(tree) == {"a.csv": b"data/a.csv.gz", "b": b"data/b", "c.tar": b"data/c.tgz", ".gz": b"data/.gz"}
    assert facts.size_bytes == sum(map(len, files(tree).values()))


def test_gzip_channel_with_names_that_meet_is_refused(store, tree):
    for key in ("data/a", "data/a.gz"):
        store.put_bytes("b", key, gzip.compress(b"x", mtime=0))
    assert "the same file" in refusal(make_channel(compression="Gzip"), store, tree)


@pytest.mark.parametrize("data", [b"plain text", gzip.compress(b"x" * 1000, mtime=0)[:-5]])
def test_gzip_channel_with_other_or_cut_data_names_the_key(store, tree, data):
    store.put_bytes("b", "data/bad.gz", data)
    assert "data/bad.gz" in refusal(make_channel(compression="Gzip"), store, tree)
    assert files(tree) == {}


def test_fast_file_is_fetched_in_full(store, tree):
    fill(store, "data/x")
    facts = fetch(make_channel(input_mode=InputMode.FAST_FILE), store, tree)
    assert set(files(tree)) == {"x"}
    assert facts.notes == (), "the service has warned of it when the job was created"


def test_pipe_channel_only_counts_its_objects(store, tree):
    fill(store, "data/../x", "data/y")
    facts = fetch(make_channel(input_mode=InputMode.PIPE), store, tree)
    assert facts.num_objects == 2
    assert not tree.channel("train").exists()
    store.objects.clear()
    refusal(make_channel(input_mode=InputMode.PIPE), store, tree)


def test_file_system_channel_must_exist_on_the_host(store, tree, tmp_path):
    (tmp_path / "nfs").mkdir()
    (tmp_path / "file").touch()
    facts = fetch(make_channel(None, file_system_path=str(tmp_path / "nfs")), store, tree)
    assert facts.num_objects == 0
    (tmp_path / "nfs" / "link").symlink_to("/etc")
    for path, below in (("gone", ""), ("file", ""), ("nfs", "gone"), ("nfs", "link"), ("nfs", "..")):
        channel = make_channel(None, file_system_path=str(tmp_path / path), file_system_folder=below)
        assert "cannot be opened as a folder" in refusal(channel, store, tree)


def test_fetching_twice_gives_the_same_files(store, tree):
    fill(store, "data/x", "data/d/y")
    fetch(make_channel(), store, tree)
    store.put_bytes("b", "data/x", b"new")
    fetch(make_channel(), store, tree)
    assert files(tree) == {"x": b"new", "d/y": b"at data/d/y"}


def test_failing_object_stops_other_downloads_and_leaves_no_partial_files(store, tree):
    fill(store, *(f"data/{number:04}" for number in range(500)))
    store.fail_on.add(("GET", "data/0000"))
    with pytest.raises(ObjectStoreError, match="told to fail"):
        fetch(make_channel(), store, tree)
    assert store.num_reads < 400
    assert all(data.startswith(b"at data/") for data in files(tree).values())


def test_channel_larger_than_the_disk_is_refused_before_anything_is_written(store, tree, monkeypatch):
    fill(store, "data/x")
    monkeypatch.setattr(disk_space, "free_bytes", lambda path: 3)
    message = refusal(make_channel(), store, tree)
    assert "No space left on device" in message
    assert "9 bytes needed, 3 bytes free" in message
    assert str(tree.channel("train")) in message
    assert files(tree) == {}


def test_disk_that_fills_up_during_the_fetch_is_reported(store, tree, monkeypatch):
    store.put_bytes("b", "data/x.gz", gzip.compress(b"x" * 10, mtime=0))

    class FullDisk:
        @staticmethod
        def write(descriptor: int, data: bytes) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("clary.agent.channels.unpacking.os", FullDisk)
    message = refusal(make_channel(compression="Gzip"), store, tree)
    assert "No space left on device" in message
    assert os.listdir(tree.channel("train")) == []


def test_https_uri_is_refused_with_the_right_form(store):
    with pytest.raises(AgentError, match="s3://bucket/key"):
        select_objects(make_channel("https://s3.amazonaws.com/b/data"), store=store)
