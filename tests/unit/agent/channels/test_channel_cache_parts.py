"""Channels from the cache of a machine: objects that are fetched, kept, or never trusted."""

from __future__ import annotations

import errno
import gzip
import hashlib
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from clary.agent.channels import fetch_channel, select_objects
from clary.agent.channels.cache import CacheUnusable, ChannelCache, copy_snapshot, copying, keeping
from clary.agent.channels.cache.folder import CacheFolder
from clary.agent.channels.cache.locks import ObjectLocks, hold_file
from clary.agent.channels.cache.naming import identity_of
from clary.base.disk_space import full_disk_error
from clary.base.errors import AgentError, Fault, ObjectStoreError
from clary.contract.launch_plan import Channel, InputMode
from clary.contract.ml_tree import MlTree
from clary.contract.object_store import ObjectInfo
from clary.testing.fake_object_store import FakeObjectStore

MIB = 1 << 20
URL = "http://127.0.0.1:1"
BOOT = "first-boot"


@pytest.fixture
def store():
    return FakeObjectStore()


class Machine:
    """A cache and hosts that fetch through it; snapshots stay locked until `forget`."""

    def __init__(self, folder: Path, store: FakeObjectStore) -> None:
        self.root = folder / "cache" / "channels"
        self.tree = MlTree(folder / "ml")
        self.store = store
        self.held = []

    def cache(self, *, limit_bytes: int = 64 * MIB, boot: str = BOOT, **fields) -> ChannelCache:
        return ChannelCache(self.root, limit_bytes=limit_bytes, endpoint_url=URL, boot=boot, **fields)

    def fetch(self, uri="s3://b/data", *, cache=None, host_index=0, num_hosts=1, **fields):
        """Fetch a channel; return its facts and the number of objects that were read."""
        before = self.store.num_reads
        channel = Channel(name=fields.pop("name", "train"), s3_uri=uri, **fields)
        facts = fetch_channel(
            channel,
            store=self.store,
            tree=self.tree,
            host_index=host_index,
            num_hosts=num_hosts,
            cache=cache or self.cache(),
        )
        if facts.snapshot is not None:
            self.held.append(facts.snapshot)
        return facts, self.store.num_reads - before

    def forget(self) -> None:
        while self.held:
            self.held.pop().release()

    def objects(self) -> list[Path]:
        return sorted(path for path in (self.root / "objects").rglob("*") if path.is_file())

    def snapshots(self) -> list[Path]:
        return sorted((self.root / "snapshots").glob("*/*"))


@pytest.fixture
def machine(tmp_path, store):
    machine = Machine(tmp_path, store)
    yield machine
    machine.forget()


def fill(store: FakeObjectStore, *keys: str, size: int = 0) -> None:
    for key in keys:
        store.put_bytes("b", key, f"at {key}".encode().ljust(size, b"."))


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


def test_a_second_run_reads_no_object_and_sees_the_same_files(machine, store):
    fill(store, "data/a", "data/sub/b", "data/empty/")
    first, num_read = machine.fetch()
    assert num_read == 2
    assert first.summary == "channel train: 2 objects, 22 bytes: 0 from this machine's cache, 2 fetched"
    second, num_read = machine.fetch()
    assert num_read == 0
    assert second.summary == "channel train: 2 objects, 22 bytes: 2 from this machine's cache, 0 fetched"
    assert second.snapshot.path == first.snapshot.path
    assert files(second.snapshot.path) == {"a": b"at data/a", "sub/b": b"at data/sub/b"}
    assert (second.snapshot.path / "empty").is_dir()
    assert list(machine.tree.root.rglob("*")) == []


def test_of_a_channel_that_changed_only_the_changed_objects_are_read(machine, store):
    fill(store, *(f"data/{index}" for index in range(20)))
    machine.fetch()
    store.put_bytes("b", "data/7", b"new")
    store.delete("b", "data/8")
    facts, num_read = machine.fetch()
    assert num_read == 1
    assert facts.summary.endswith(": 18 from this machine's cache, 1 fetched")
    seen = files(facts.snapshot.path)
    assert len(seen) == 19
    assert seen["7"] == b"new"
    former = files(machine.held[0].path)
    assert (len(former), former["7"], former["8"]) == (20, b"at data/7", b"at data/8")


def test_the_same_content_under_another_prefix_is_not_read_again(machine, store):
    for job in ("job-1", "job-2"):
        store.put_bytes("b", f"{job}/input/code/train.py", b"print(1)")
    machine.fetch("s3://b/job-1/input/code")
    facts, num_read = machine.fetch("s3://b/job-2/input/code", name="code")
    assert num_read == 0
    assert files(facts.snapshot.path) == {"train.py": b"print(1)"}


# Two texts of one MD5 sum, from: X. Wang, D. Feng, X. Lai, H. Yu, Collisions for Hash Functions MD4, MD5, HAVAL-128
# and RIPEMD (2004).
ONE_OF_TWO = bytes.fromhex(
    "d131dd02c5e6eec4693d9a0698aff95c2fcab58712467eab4004583eb8fb7f8955ad340609f4b30283e488832571415a085125e8f7cdc99f"
    "d91dbdf280373c5bd8823e3156348f5bae6dacd436c919c6dd53e2b487da03fd02396306d248cda0e99f33420f577ee8ce54b67080a80d1e"
    "c69821bcb6a8839396f9652b6ff72a70"
)
OTHER_OF_TWO = bytes.fromhex(
    "d131dd02c5e6eec4693d9a0698aff95c2fcab50712467eab4004583eb8fb7f8955ad340609f4b30283e4888325f1415a085125e8f7cdc99f"
    "d91dbd7280373c5bd8823e3156348f5bae6dacd436c919c6dd53e23487da03fd02396306d248cda0e99f33420f577ee8ce54b67080280d1e"
    "c69821bcb6a8839396f965ab6ff72a70"
)


@pytest.mark.parametrize(
    ("bucket", "place"), [("b", "outputs/7/data"), ("b", "checked/other"), ("other", "checked/data")]
)
def test_an_object_of_the_same_md5_sum_elsewhere_is_not_mistaken_for_it(machine, store, bucket, place):
    assert hashlib.md5(ONE_OF_TWO).digest() == hashlib.md5(OTHER_OF_TWO).digest()
    assert ONE_OF_TWO != OTHER_OF_TWO
    name = "weights.bin" if place.endswith("data") else "others.bin"
    store.put_bytes(bucket, f"{place}/{name}", OTHER_OF_TWO)
    store.put_bytes("b", "checked/data/weights.bin", ONE_OF_TWO)
    machine.fetch(f"s3://{bucket}/{place}")
    facts, num_read = machine.fetch("s3://b/checked/data")
    assert files(facts.snapshot.path) == {"weights.bin": ONE_OF_TWO}
    assert num_read == 1
    assert machine.fetch("s3://b/checked/data")[1] == 0


def test_two_objects_of_one_channel_with_the_same_md5_sum_keep_their_contents(machine, store):
    store.put_bytes("b", "data/1.bin", ONE_OF_TWO)
    store.put_bytes("b", "data/2.bin", OTHER_OF_TWO)
    for num_expected in (2, 0):
        facts, num_read = machine.fetch()
        assert (files(facts.snapshot.path), num_read) == ({"1.bin": ONE_OF_TWO, "2.bin": OTHER_OF_TWO}, num_expected)


@pytest.mark.parametrize(
    ("former", "later"),
    [
        ("pytorch-training-2026-01-02-03-04-05-678/source", "pytorch-training-2026-01-03-00-00-00-001/source"),
        ("tune-1718000000-a3f9/source", "tune-1718000011-04cc/source"),
        ("base/base-20260102030405/input/code", "base/base-20260102030406/input/code"),
        ("runs/20260102T030405Z/data", "runs/20260103T000000Z/data"),
        ("x/0c1d2e3f-0a1b-4c5d-8e9f-001122334455/data", "x/9c1d2e3f-7a1b-4c5d-9e9f-aa1122334455/data"),
    ],
)
def test_an_upload_under_the_name_of_a_later_job_is_not_read_again(machine, store, former, later):
    for place in (former, later):
        store.put_bytes("b", f"{place}/train.py", b"print(1)")
    machine.fetch(f"s3://b/{former}")
    facts, num_read = machine.fetch(f"s3://b/{later}", name="code")
    assert num_read == 0
    assert files(facts.snapshot.path) == {"train.py": b"print(1)"}


class OpaqueTags(FakeObjectStore):
    """A fake store whose ETags look like MD5 sums but are not, as with encryption by KMS keys."""

    def _info(self, bucket: str, key: str) -> ObjectInfo:
        info = super()._info(bucket, key)
        tag = hashlib.md5(f"{key}{info.etag}".encode(), usedforsecurity=False).hexdigest()
        return ObjectInfo(key=key, size_bytes=info.size_bytes, etag=f'"{tag}"')


def test_an_etag_that_is_no_md5_sum_identifies_content_only_at_its_own_key(tmp_path):
    store = OpaqueTags()
    machine = Machine(tmp_path, store)
    fill(store, "data/a", "data/b")
    try:
        machine.fetch()
        facts, num_read = machine.fetch()
        assert num_read == 0
        assert files(facts.snapshot.path) == {"a": b"at data/a", "b": b"at data/b"}
        info = next(store.list_objects("b", "data/a"))
        identity = identity_of(
            endpoint_url=URL, bucket="b", key="data/a", etag=info.etag, size_bytes=9, is_unpacked=False
        )
        assert identity.place in {path.name for path in machine.objects()}
        assert identity.content not in {path.name for path in machine.objects()}
    finally:
        machine.forget()


def test_hosts_that_share_a_channel_share_objects_and_have_snapshots_of_their_own(machine, store):
    fill(store, *(f"data/{index}" for index in range(5)))
    sharded = {"s3_data_distribution": "ShardedByS3Key"}
    first, num_read_first = machine.fetch(host_index=0, num_hosts=2, **sharded)
    second, num_read_second = machine.fetch(host_index=1, num_hosts=2, **sharded)
    assert (num_read_first, num_read_second) == (3, 2)
    assert set(files(first.snapshot.path)) == {"0", "2", "4"}
    assert set(files(second.snapshot.path)) == {"1", "3"}
    whole, num_read = machine.fetch()
    assert num_read == 0
    assert len(files(whole.snapshot.path)) == 5


def test_packed_objects_are_kept_unpacked(machine, store):
    store.put_bytes("b", "data/x.csv.gz", gzip.compress(b"1,2\n" * 1000))
    for expected in (1, 0):
        facts, num_read = machine.fetch(compression="Gzip")
        assert num_read == expected
        assert files(facts.snapshot.path) == {"x.csv": b"1,2\n" * 1000}
    plain, num_read = machine.fetch()
    assert num_read == 1
    assert gzip.decompress(files(plain.snapshot.path)["x.csv.gz"]) == b"1,2\n" * 1000


def test_an_object_that_is_no_gzip_data_is_the_users_fault_and_is_not_kept(machine, store):
    store.put_bytes("b", "data/x.gz", b"no gzip data")
    with pytest.raises(AgentError, match=r"data/x\.gz.* is not whole gzip data") as caught:
        machine.fetch(compression="Gzip")
    assert caught.value.fault is Fault.USER
    assert machine.objects() == machine.snapshots() == []
    assert list((machine.root / "filling").iterdir()) == []


def test_objects_of_a_manifest_are_known_by_head(machine, store):
    fill(store, "data/a", "data/b")
    store.put_bytes("b", "lists/train.manifest", json.dumps([{"prefix": "s3://b/data/"}, "a", "b"]).encode())
    manifest = {"uri": "s3://b/lists/train.manifest", "s3_data_type": "ManifestFile"}
    _, num_read = machine.fetch(**manifest)
    assert num_read == 3
    facts, num_read = machine.fetch(**manifest)
    assert num_read == 0
    assert files(facts.snapshot.path) == {"a": b"at data/a", "b": b"at data/b"}


def test_fast_file_channels_are_kept_and_pipes_are_not(machine, store):
    fill(store, "data/a")
    facts, _ = machine.fetch(input_mode=InputMode.FAST_FILE)
    assert facts.snapshot is not None
    facts, num_read = machine.fetch(input_mode=InputMode.PIPE)
    assert (facts.snapshot, facts.summary, num_read) == (None, "", 0)


def test_without_a_bound_nothing_is_kept(machine, store):
    fill(store, "data/a")
    facts, num_read = machine.fetch(cache=machine.cache(limit_bytes=0))
    assert (facts.snapshot, num_read) == (None, 1)
    assert facts.summary == "channel train: 1 object, 9 bytes: fetched"
    assert files(machine.tree.channel("train")) == {"a": b"at data/a"}
    assert not machine.root.exists()


def test_a_channel_beyond_the_size_limit_is_fetched_directly_with_a_note(machine, store):
    fill(store, "data/a", size=2000)
    facts, num_read = machine.fetch(cache=machine.cache(limit_bytes=1000))
    assert (facts.snapshot, num_read) == (None, 1)
    assert (
        "it has 2000 bytes, and this machine's cache may hold at most 1000 (setting channel_cache_bytes)"
        in facts.summary
    )
    assert len(files(machine.tree.channel("train"))) == 1


def test_the_least_recently_used_snapshot_is_evicted_first_with_its_objects(machine, store):
    cache = machine.cache(limit_bytes=2500)
    for name in ("one", "two"):
        fill(store, f"{name}/x", size=1000)
        machine.fetch(f"s3://b/{name}", cache=cache)
    machine.forget()
    machine.fetch("s3://b/one", cache=cache)  # `two` is now the least recently used snapshot
    machine.forget()
    fill(store, "three/x", size=1000)
    machine.fetch("s3://b/three", cache=cache)
    assert machine.fetch("s3://b/one", cache=cache)[1] == 0
    assert machine.fetch("s3://b/two", cache=cache)[1] == 1


def test_a_snapshot_that_a_running_host_uses_is_never_evicted(machine, store):
    cache = machine.cache(limit_bytes=1500)
    fill(store, "one/x", "two/x", size=1000)
    used, _ = machine.fetch("s3://b/one", cache=cache)
    facts, _ = machine.fetch("s3://b/two", cache=cache)
    assert facts.snapshot is None
    assert "running hosts use 1000 bytes of this machine's cache" in facts.summary
    assert len(files(used.snapshot.path)["x"]) == 1000
    assert list(files(machine.tree.channel("train"))) == ["x"]
    machine.forget()
    assert machine.fetch("s3://b/two", cache=cache)[0].snapshot is not None
    assert not used.snapshot.path.exists()


def test_a_disk_too_full_for_the_cache_does_not_fail_a_channel_that_fits(machine, store, monkeypatch):
    fill(store, "data/a", size=1000)
    monkeypatch.setattr("clary.agent.channels.cache.keeping.free_bytes", lambda path: 999)
    facts, _ = machine.fetch()
    assert "and 999 are free on its disk" in facts.summary
    assert len(files(machine.tree.channel("train"))) == 1


def test_a_disk_that_fills_up_during_the_fetch_does_not_fail_the_channel(machine, store):
    fill(store, "data/a")

    class FullOnce(FakeObjectStore):
        """A fake store whose first download finds the disk full."""

        def download(self, bucket, key, path, *, size_bytes=None, etag=""):
            if self.num_reads == 0:
                self.num_reads += 1
                raise full_disk_error(path, needed_bytes=size_bytes)
            return super().download(bucket, key, path, size_bytes=size_bytes, etag=etag)

    machine.store = FullOnce()
    machine.store.objects = dict(store.objects)
    facts, _ = machine.fetch()
    assert "not kept in this machine's cache: No space left on device" in facts.summary
    assert files(machine.tree.channel("train")) == {"a": b"at data/a"}


def test_a_cache_that_cannot_be_written_does_not_fail_the_channel(machine, store):
    fill(store, "data/a")
    machine.root.parent.mkdir()
    machine.root.write_text("a file is in the way")
    facts, _ = machine.fetch()
    assert "cannot be used" in facts.summary
    assert files(machine.tree.channel("train")) == {"a": b"at data/a"}


@pytest.mark.parametrize("change", ["write", "cut", "replace", "remove"])
def test_a_snapshot_that_was_changed_is_made_again(machine, store, change):
    fill(store, "data/a", "data/b")
    facts, _ = machine.fetch()
    machine.forget()
    victim = facts.snapshot.path / "a"
    if change == "write":
        victim.write_bytes(b"of data/a")  # changed content of the same size
    elif change == "cut":
        os.truncate(victim, 3)
    else:
        victim.unlink()
        if change == "replace":
            victim.write_bytes(b"at data/a")
    facts, num_read = machine.fetch()
    assert num_read == (1 if change in ("write", "cut") else 0)
    assert files(facts.snapshot.path) == {"a": b"at data/a", "b": b"at data/b"}


def test_a_changed_snapshot_stays_while_a_host_uses_it(machine, store):
    fill(store, "data/a")
    facts, _ = machine.fetch()
    (facts.snapshot.path / "a").write_bytes(b"of data/a")
    again, num_read = machine.fetch()
    assert (again.snapshot, num_read) == (None, 1)
    assert "was changed since it was made, and a running host uses it" in again.summary
    assert files(machine.tree.channel("train")) == {"a": b"at data/a"}


def test_after_a_reboot_only_flushed_objects_are_trusted(machine, store):
    fill(store, "kept/a")
    machine.fetch("s3://b/kept")
    machine.cache().tidy()
    fill(store, "fresh/b")
    machine.fetch("s3://b/fresh")
    machine.forget()
    later = machine.cache(boot="second-boot")
    assert machine.fetch("s3://b/kept", cache=later)[1] == 0
    assert machine.fetch("s3://b/fresh", cache=later)[1] == 1
    assert {path.parent.name for path in machine.snapshots()} == {"boot-second-boot"}
    assert not (machine.root / "objects" / "boot-first-boot").exists()


def test_an_object_replaced_during_the_fetch_is_used_and_not_cached(machine, store):
    fill(store, "data/a")

    class Replaced(FakeObjectStore):
        """A fake store whose object changes between listing and download."""

        def download(self, bucket, key, path, *, size_bytes=None, etag=""):
            self.put_bytes(bucket, key, b"to data/a")
            return super().download(bucket, key, path, size_bytes=size_bytes, etag=etag)

    machine.store = Replaced()
    machine.store.objects = dict(store.objects)
    facts, _ = machine.fetch()
    assert facts.snapshot is None
    assert "was replaced while it was fetched" in facts.summary
    assert files(machine.tree.channel("train")) == {"a": b"to data/a"}
    assert machine.objects() == []


def test_a_store_that_fails_is_the_jobs_failure_and_leaves_whole_objects_only(machine, store):
    fill(store, *(f"data/{index}" for index in range(4)))
    store.fail_on.add(("GET", "data/2"))
    with pytest.raises(ObjectStoreError, match="data/2"):
        machine.fetch()
    assert machine.snapshots() == []
    assert list((machine.root / "filling").iterdir()) == []
    num_kept = len(machine.objects())
    store.fail_on.clear()
    facts, num_read = machine.fetch()
    assert num_read == 4 - num_kept
    assert len(files(facts.snapshot.path)) == 4


def test_folders_of_dead_fillers_are_swept_and_folders_of_live_fillers_are_not(machine, store):
    folder = CacheFolder(machine.root, boot=BOOT)
    folder.make()
    (machine.root / "filling" / "dead" / "tree").mkdir(parents=True)
    with folder.fill() as filling:
        fill(store, "data/a")
        machine.fetch()
        assert not (machine.root / "filling" / "dead").exists()
        assert filling.tree.is_dir()


def test_an_object_that_another_agent_fetches_is_waited_for(machine, store):
    fill(store, "data/a", "data/b")
    machine.fetch("s3://b/data/b")  # makes the cache's folders
    info = next(store.list_objects("b", "data/a"))
    identity = identity_of(endpoint_url=URL, bucket="b", key="data/a", etag=info.etag, size_bytes=9, is_unpacked=False)
    folder = CacheFolder(machine.root, boot=BOOT)
    with ObjectLocks(folder.object_locks) as other, folder.fill() as filling:
        assert other.take(identity.name)
        done = threading.Event()
        outcome = []

        def other_host():
            outcome.append(machine.fetch())
            done.set()

        waiting = threading.Thread(target=other_host)
        waiting.start()
        try:
            assert not done.wait(0.5)
            (filling.tree / "a").write_bytes(b"at data/a")
            folder.publish(filling.tree / "a", identity.name)
            other.let_go(identity.name)
        finally:
            waiting.join(30)
    facts, num_read = outcome[0]
    assert num_read == 0
    assert facts.summary.endswith("2 from this machine's cache, 0 fetched")


def test_an_agent_that_has_waited_too_long_fetches_the_object_itself(machine, store):
    fill(store, "data/a")
    machine.cache().tidy()  # makes the cache's folders
    info = next(store.list_objects("b", "data/a"))
    identity = identity_of(endpoint_url=URL, bucket="b", key="data/a", etag=info.etag, size_bytes=9, is_unpacked=False)
    with ObjectLocks(CacheFolder(machine.root, boot=BOOT).object_locks) as other:
        assert other.take(identity.name)
        facts, num_read = machine.fetch(cache=machine.cache(lock_wait_s=0.2))
    assert num_read == 1
    assert files(facts.snapshot.path) == {"a": b"at data/a"}


def test_a_host_that_stops_does_not_wait_for_other_agents(machine, store):
    fill(store, "data/a")
    machine.cache().tidy()
    info = next(store.list_objects("b", "data/a"))
    identity = identity_of(endpoint_url=URL, bucket="b", key="data/a", etag=info.etag, size_bytes=9, is_unpacked=False)
    stop = threading.Event()
    stop.set()
    channel = Channel(name="train", s3_uri="s3://b/data")
    with ObjectLocks(CacheFolder(machine.root, boot=BOOT).object_locks) as other:
        assert other.take(identity.name)
        cache = machine.cache(stop=stop)
        selection = select_objects(channel, store=store)
        with pytest.raises(CacheUnusable, match="the host stops"):
            cache.snapshot(selection.objects, (), channel=channel, store=store)


def test_many_hosts_that_fill_at_once_read_each_object_once(machine, store):
    fill(store, *(f"data/{index:03}" for index in range(60)))
    outcomes = []
    hosts = [threading.Thread(target=lambda: outcomes.append(machine.fetch()[0])) for _ in range(6)]
    for host in hosts:
        host.start()
    for host in hosts:
        host.join(60)
    assert [facts.summary for facts in outcomes if facts.snapshot is None] == []
    assert store.num_reads == 60
    assert len({facts.snapshot.path for facts in outcomes}) == 1
    assert len(files(outcomes[0].snapshot.path)) == 60
    assert len(outcomes) == 6


def test_objects_of_one_content_are_one_file_on_disk(machine, store):
    for name in ("a", "b", "c"):
        store.put_bytes("b", f"data/{name}/__init__.py", b"")
    facts, _ = machine.fetch()
    assert len(files(facts.snapshot.path)) == 3
    assert len(machine.objects()) == 1
    assert machine.fetch()[1] == 0


def test_an_archive_of_code_is_opened_from_the_cache(machine, store):
    store.put_bytes("b", "code/sourcedir.tar.gz", b"an archive")
    for expected in (1, 0):
        before = store.num_reads
        with machine.cache().source(store).open_reader("b", "code/sourcedir.tar.gz") as reader:
            assert reader.read() == b"an archive"
        assert store.num_reads - before == expected
    with machine.cache(limit_bytes=0).source(store).open_reader("b", "code/sourcedir.tar.gz") as reader:
        assert reader.read() == b"an archive"
    with pytest.raises(ObjectStoreError, match="NoSuchKey"):
        machine.cache().source(store).open_reader("b", "code/missing")


def test_a_copy_of_a_snapshot_shares_nothing_with_it(machine, store):
    fill(store, "data/a", "data/sub/b", "data/empty/")
    facts, _ = machine.fetch()
    target = machine.tree.channel("train")
    copy_snapshot(facts.snapshot.path, target, size_bytes=facts.size_bytes)
    assert (target / "empty").is_dir()
    (target / "a").write_bytes(b"changed")
    (target / "sub" / "b").unlink()
    assert files(facts.snapshot.path) == {"a": b"at data/a", "sub/b": b"at data/sub/b"}


def test_a_copy_that_fails_leaves_no_file(machine, store, monkeypatch):
    fill(store, "data/a", "data/b", "data/sub/c")
    facts, _ = machine.fetch()
    target = machine.tree.channel("train")
    target.mkdir(parents=True)
    (target / "own").write_bytes(b"own")
    copied = []
    copy_file = copying._copy_file

    def copy_two(source, place):
        copy_file(source, place)
        copied.append(place)
        if len(copied) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(copying, "_copy_file", copy_two)
    with pytest.raises(AgentError, match="No space left on device"):
        copy_snapshot(facts.snapshot.path, target, size_bytes=facts.size_bytes)
    assert files(target) == {"own": b"own"}
    assert len(files(facts.snapshot.path)) == 3


def test_an_acceptance_is_cached_until_a_reboot_and_a_refusal_is_not_cached(machine):
    answers = iter(["busy", "busy", None, "never asked", None])
    outcomes = [
        machine.cache(boot=boot).refusal("overlay", lambda: next(answers)) for boot in (BOOT, BOOT, BOOT, BOOT, "later")
    ]
    assert outcomes == ["busy", "busy", None, None, "never asked"]


def test_the_same_content_many_times_in_a_channel_is_read_once(tmp_path):
    class Slow(FakeObjectStore):
        """A fake store whose downloads last until all workers have had time to begin a download."""

        def download(self, bucket, key, path, *, size_bytes=None, etag=""):
            time.sleep(0.3)
            return super().download(bucket, key, path, size_bytes=size_bytes, etag=etag)

    machine = Machine(tmp_path, Slow())
    for index in range(20):
        machine.store.put_bytes("b", f"data/{index}/__init__.py", b"")
    try:
        facts, num_read = machine.fetch()
        assert num_read == 1
        assert facts.summary.endswith(": 19 from this machine's cache, 1 fetched")
        assert len(files(facts.snapshot.path)) == 20
    finally:
        machine.forget()


def test_workers_that_wait_for_one_another_end_when_the_store_fails(tmp_path):
    class Failing(FakeObjectStore):
        """A fake store whose downloads fail after a while."""

        def download(self, bucket, key, path, *, size_bytes=None, etag=""):
            self.num_reads += 1
            time.sleep(0.3)
            raise ObjectStoreError(f"the store cannot give {key}")

    machine = Machine(tmp_path, Failing())
    for index in range(20):
        machine.store.put_bytes("b", f"data/{index}/__init__.py", b"")
    with pytest.raises(ObjectStoreError, match="cannot give"):
        machine.fetch()
    assert machine.store.num_reads < 20


def limit_links(monkeypatch, max_links):
    """Limit the number of hard links of a file, as file systems do with larger numbers."""
    link = os.link

    def limited(source, target):
        if os.stat(source).st_nlink >= max_links:
            raise OSError(errno.EMLINK, "Too many links", str(source))
        link(source, target)

    monkeypatch.setattr(os, "link", limited)


def test_content_of_more_files_than_the_link_limit_is_kept(machine, store, monkeypatch):
    limit_links(monkeypatch, 5)
    for index in range(30):
        store.put_bytes("b", f"data/{index}/__init__.py", b"")
    facts, num_read = machine.fetch()
    assert facts.snapshot is not None, facts.summary
    assert len(files(facts.snapshot.path)) == 30
    assert 30 / 5 <= num_read < 30
    again, num_read = machine.fetch()
    assert (again.snapshot.path, num_read) == (facts.snapshot.path, 0)


def test_an_object_that_has_reached_the_disks_link_limit_is_replaced(machine, store, tmp_path):
    store.put_bytes("b", "job-1/a", b"at one/a")
    machine.fetch("s3://b/job-1")
    (stored,) = machine.objects()
    is_limited = False
    for index in range(66_000):  # ext4 allows 65,000 links; on file systems that allow more, no object is replaced
        try:
            os.link(stored, tmp_path / f"link-{index}")
        except OSError as error:
            is_limited = error.errno == errno.EMLINK
            break
    store.put_bytes("b", "job-2/a", b"at one/a")
    store.put_bytes("b", "job-2/more", b"more")  # so that it is another snapshot
    facts, num_read = machine.fetch("s3://b/job-2")
    assert facts.snapshot is not None, facts.summary
    assert num_read == 1 + int(is_limited)
    assert files(facts.snapshot.path) == {"a": b"at one/a", "more": b"more"}


def test_a_cache_with_room_is_filled_while_another_agent_makes_room(machine, store, monkeypatch):
    fill(store, "one/a", "two/b")
    machine.fetch("s3://b/one")
    monkeypatch.setattr(keeping, "_LOCK_WAIT_S", 0.1)
    held = hold_file(machine.root / "keeping-lock", within_s=1.0)
    assert held is not None
    try:
        (machine.root / "filling" / "dead" / "tree").mkdir(parents=True)
        facts, _ = machine.fetch("s3://b/two")
        assert facts.snapshot is not None, facts.summary
        assert not (machine.root / "filling" / "dead").exists()
        fill(store, "three/c", size=1000)
        full, _ = machine.fetch("s3://b/three", cache=machine.cache(limit_bytes=1001))
        assert "another agent has been making room in this machine's cache for too long" in full.summary
    finally:
        os.close(held)


def test_agents_that_sweep_at_once_do_not_disturb_one_another(machine, store):
    folder = CacheFolder(machine.root, boot=BOOT)
    folder.make()
    for boot in range(5):
        former = CacheFolder(machine.root, boot=f"former-{boot}")
        former.make()
        for number in range(20):
            (machine.root / "snapshots" / f"boot-former-{boot}" / f"tree-{number}" / "sub").mkdir(parents=True)
            (machine.root / "filling" / f"dead-{boot}-{number}" / "tree").mkdir(parents=True)
    with ThreadPoolExecutor(6) as pool:
        for sweeping in [pool.submit(folder.sweep) for _ in range(6)]:
            sweeping.result()
    folder.sweep()
    assert [path.name for path in (machine.root / "snapshots").iterdir()] == [f"boot-{BOOT}"]
    assert list((machine.root / "filling").iterdir()) == []
