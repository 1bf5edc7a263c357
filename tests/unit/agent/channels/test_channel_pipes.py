"""Pipe channels as a training program reads them."""

from __future__ import annotations

import gzip
import os
import struct
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from clary.agent.channels import PipeFeeder
from clary.base.errors import AgentError, Fault, ObjectStoreError
from clary.contract.launch_plan import Channel, InputMode
from clary.contract.ml_tree import MlTree
from clary.testing.fake_object_store import FakeObjectStore

DEADLINE_S = 10.0


@contextmanager
def feeding(store, tmp_path, **fields):
    tree = MlTree(tmp_path)
    host_index, num_hosts = fields.pop("host", (0, 1))
    on_failure = fields.pop("on_failure", None)
    channel = Channel(name="train", s3_uri="s3://b/data/", input_mode=InputMode.PIPE, **fields)
    feeder = PipeFeeder(
        channel, store=store, tree=tree, host_index=host_index, num_hosts=num_hosts, on_failure=on_failure
    )
    feeder.start()
    try:
        yield feeder, tree
    finally:
        feeder.stop()


def wait_for(path: Path) -> Path:
    end = time.monotonic() + DEADLINE_S
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not appear"
        time.sleep(0.005)
    return path


def read_epoch(tree: MlTree, epoch: int) -> bytes:
    """Read an epoch as SageMaker's example reader does: wait for the pipe, open it unbuffered, read to its end."""
    with open(wait_for(tree.data / f"train_{epoch}"), "rb", buffering=0) as pipe:
        return pipe.readall()


@pytest.fixture
def store():
    fake = FakeObjectStore()
    for name in "cab":
        fake.put_bytes("b", f"data/{name}", name.encode() * 3)
    return fake


def test_every_epoch_is_the_objects_one_after_the_other(store, tmp_path):
    with feeding(store, tmp_path) as (feeder, tree):
        assert (tree.data / "train_0").is_fifo()
        for epoch in range(3):
            assert read_epoch(tree, epoch) == b"aaabbbccc"
        wait_for(tree.data / "train_3")
        assert not (tree.data / "train_0").exists()
    # after the feeder has stopped: it counts an epoch only after it has made the next pipe
    assert feeder.num_epochs == 3
    assert os.listdir(tree.data) == []


def test_pipe_may_be_closed_early(store, tmp_path):
    store.put_bytes("b", "data/a", bytes(8 << 20))
    with feeding(store, tmp_path) as (_, tree):
        with open(tree.data / "train_0", "rb", buffering=0) as pipe:
            assert pipe.read(10) == bytes(10)
        with open(wait_for(tree.data / "train_1"), "rb", buffering=0) as pipe:
            assert pipe.read(10) == bytes(10)
        wait_for(tree.data / "train_2")


def test_large_objects_arrive_whole(store, tmp_path):
    store.objects.clear()
    blob = os.urandom(5 << 20)
    store.put_bytes("b", "data/blob", blob)
    with feeding(store, tmp_path) as (_, tree):
        assert read_epoch(tree, 0) == blob


def test_recordio_frames_every_object(store, tmp_path):
    store.objects.clear()
    store.put_bytes("b", "data/1", b"12345")
    store.put_bytes("b", "data/2", b"1234")
    with feeding(store, tmp_path, record_wrapper="RecordIO") as (_, tree):
        data = read_epoch(tree, 0)
    head = struct.pack("<I", 0xCED7230A)
    assert data == head + struct.pack("<I", 5) + b"12345\0\0\0" + head + struct.pack("<I", 4) + b"1234"


def test_gzip_objects_are_unpacked_also_within_records(store, tmp_path):
    store.objects.clear()
    store.put_bytes("b", "data/1", gzip.compress(b"abc", mtime=0))
    with feeding(store, tmp_path, compression="Gzip") as (_, tree):
        assert read_epoch(tree, 0) == b"abc"
    with feeding(store, tmp_path, compression="Gzip", record_wrapper="RecordIO") as (_, tree):
        assert read_epoch(tree, 0) == struct.pack("<II", 0xCED7230A, 3) + b"abc\0"


def test_shuffle_gives_each_epoch_its_own_order(store, tmp_path):
    store.objects.clear()
    for letter in "abcdefghijkl":
        store.put_bytes("b", f"data/{letter}", letter.encode())
    with feeding(store, tmp_path, shuffle_seed=3) as (_, tree):
        first, second = read_epoch(tree, 0), read_epoch(tree, 1)
    assert sorted(first) == sorted(second) == sorted(b"abcdefghijkl")
    assert first != second


def test_shards_of_two_hosts_make_the_whole(store, tmp_path):
    got = []
    for index in range(2):
        with feeding(store, tmp_path, s3_data_distribution="ShardedByS3Key", host=(index, 2)) as (_, tree):
            got.append(read_epoch(tree, 0))
    assert got == [b"aaaccc", b"bbb"]


def test_object_that_cannot_be_read_is_not_taken_for_the_end_of_data(store, tmp_path):
    store.fail_on.add(("GET", "data/b"))
    failures = []
    with feeding(store, tmp_path, on_failure=failures.append) as (feeder, tree):
        pieces = []

        def read() -> None:
            with open(tree.data / "train_0", "rb", buffering=0) as pipe:
                while data := pipe.read(100):
                    pieces.append(data)

        reader = threading.Thread(target=read)
        reader.start()
        end = time.monotonic() + DEADLINE_S
        while not failures:
            assert time.monotonic() < end
            time.sleep(0.005)
        reader.join(0.2)
        assert reader.is_alive(), "the program must not see an end"
        assert b"".join(pieces) == b"aaa"
        assert isinstance(feeder.failure, ObjectStoreError)
    reader.join(DEADLINE_S)
    assert not reader.is_alive()


def test_stop_ends_a_feeder_without_a_reader_and_a_stuck_feeder(store, tmp_path):
    started = time.monotonic()
    with feeding(store, tmp_path):
        pass
    store.put_bytes("b", "data/a", bytes(8 << 20))
    with feeding(store, tmp_path) as (feeder, tree):
        pipe = os.open(tree.data / "train_0", os.O_RDONLY)
        os.read(pipe, 10)
    os.close(pipe)
    feeder.stop()  # repeated calls are harmless
    assert time.monotonic() - started < DEADLINE_S
    assert os.listdir(tree.data) == []
    assert feeder.failure is None


def test_stop_before_start_is_harmless(store, tmp_path):
    channel = Channel(name="train", s3_uri="s3://b/data/", input_mode=InputMode.PIPE)
    PipeFeeder(channel, store=store, tree=MlTree(tmp_path), host_index=0, num_hosts=1).stop()


def test_channel_without_objects_does_not_start(store, tmp_path):
    store.objects.clear()
    with pytest.raises(AgentError, match="No S3 objects found") as caught, feeding(store, tmp_path):
        pass
    assert caught.value.fault is Fault.USER
    assert not (tmp_path / "input").exists()


def replace(kind: str, place: Path, victim: Path) -> None:
    """Replace a pipe, as a program may do."""
    place.unlink()
    if kind == "link":
        place.symlink_to(victim)
    elif kind == "hard link":
        os.link(victim, place)
    elif kind == "folder":
        place.mkdir()
    else:
        place.write_bytes(b"")


@pytest.mark.parametrize("kind", ["link", "hard link", "folder", "file"])
def test_a_file_in_place_of_a_pipe_is_not_written_to(kind, store, tmp_path):
    victim = tmp_path / "machine" / "file"
    victim.parent.mkdir()
    victim.write_bytes(b"of the machine")
    victim.chmod(0o600)
    failures: list[Exception] = []
    with feeding(store, tmp_path / "ml", on_failure=failures.append) as (_, tree):
        replace(kind, tree.data / "train_0", victim)
        end = time.monotonic() + DEADLINE_S
        while not failures:
            assert time.monotonic() < end, "nothing refused it"
            time.sleep(0.005)
    assert "cannot be fed" in str(failures[0])
    assert victim.read_bytes() == b"of the machine"
    assert victim.stat().st_mode & 0o777 == 0o600


def test_a_link_in_place_of_the_folder_of_pipes_is_not_followed(store, tmp_path):
    machine = tmp_path / "machine"
    machine.mkdir()
    for epoch in range(3):
        (machine / f"train_{epoch}").write_bytes(b"of the machine")
    with feeding(store, tmp_path / "ml") as (feeder, tree):
        moved = tree.data.with_name("moved")
        tree.data.rename(moved)
        tree.data.symlink_to(machine)
        with open(moved / "train_0", "rb", buffering=0) as pipe:
            assert pipe.read(1)
        with open(wait_for(moved / "train_1"), "rb", buffering=0) as pipe:
            assert pipe.read(1)
        wait_for(moved / "train_2")
    assert sorted(path.read_bytes() for path in machine.iterdir()) == [b"of the machine"] * 3
    assert feeder.failure is None
    assert os.listdir(moved) == []


def test_links_that_are_there_before_the_feeding_are_refused(store, tmp_path):
    machine = tmp_path / "machine"
    machine.mkdir()
    (tmp_path / "ml" / "input").mkdir(parents=True)
    (tmp_path / "ml" / "input" / "data").symlink_to(machine)
    with pytest.raises(OSError, match="symbolic link"), feeding(store, tmp_path / "ml"):
        pass
    assert os.listdir(machine) == []
