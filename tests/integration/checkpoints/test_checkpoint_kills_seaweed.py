"""Hosts that are killed while they mirror to a real SeaweedFS: each restore is whole."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import boto3
import pytest
from checkpoint_mirror_program import newest_step, restore_into, rolling_number
from faulty_gateway import faulty_gateway
from objects_service import BUCKET, STORE, ServiceThread

from clary.agent.checkpoints.outcomes import Flushed, Listeners
from clary.contract.agent_protocol import CheckpointFacts

PROGRAM = Path(__file__).with_name("checkpoint_mirror_program.py")
NUM_KILLS = 30


@pytest.fixture(scope="module")
def weed(tmp_path_factory):
    thread = ServiceThread(tmp_path_factory.mktemp("checkpoints"))
    endpoint = thread.service.store
    yield {"url": endpoint.url, "key": STORE.access_key_id, "secret": STORE.secret_access_key}
    thread.close()


@pytest.fixture
def client(weed):
    return boto3.client(
        "s3",
        endpoint_url=weed["url"],
        region_name="us-west-2",
        aws_access_key_id=weed["key"],
        aws_secret_access_key=weed["secret"],
    )


def start(weed: dict, prefix: str, folder: Path, *, host: str = "algo-1", num_hosts: int = 1, seconds: float = 60.0):
    command = [sys.executable, str(PROGRAM), json.dumps(weed), prefix, str(folder), host, str(num_hosts), str(seconds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "mirroring\n"
    return process


@pytest.mark.timeout(300)
@pytest.mark.long
def test_no_restore_is_torn_after_thirty_kills(weed, tmp_path: Path) -> None:
    dice = random.Random(3)
    prefix = f"s3://{BUCKET}/kills"
    reached, rolled = [], []
    for number in range(NUM_KILLS):
        process = start(weed, prefix, tmp_path / f"life-{number}")
        time.sleep(dice.uniform(0.1, 2.5))
        process.kill()
        process.communicate()
        restored = restore_into(weed, prefix, tmp_path / f"after-{number}")
        assert restored.warnings == ()
        reached.append(newest_step(restored.folder.path))
        rolled.append(rolling_number(restored.folder.path))
        shutil.rmtree(tmp_path / f"after-{number}")
        shutil.rmtree(tmp_path / f"life-{number}")
    assert reached == sorted(reached)
    assert rolled == sorted(rolled)
    assert reached[-1] >= NUM_KILLS // 3


@pytest.mark.timeout(120)
def test_a_constantly_replaced_file_is_stored_repeatedly_and_always_whole(weed, tmp_path: Path) -> None:
    prefix = f"s3://{BUCKET}/rolling"
    process = start(weed, prefix, tmp_path / "life")
    rolled: list[int] = []
    try:
        deadline_s = time.monotonic() + 60
        while len(set(rolled) - {0}) < 3:
            assert time.monotonic() < deadline_s, rolled
            after = tmp_path / f"after-{len(rolled)}"
            rolled.append(rolling_number(restore_into(weed, prefix, after).folder.path))
            shutil.rmtree(after)
    finally:
        process.kill()
        process.communicate()
    assert rolled == sorted(rolled)


@pytest.fixture
def mirrored(weed):
    """Return a function that restores into a folder, changes it, flushes, and returns the notes."""

    def act(prefix: str, folder: Path, files: dict[str, bytes], *, host: str = "algo-1", num_hosts: int = 1):
        checkpoints = restore_into(weed, prefix, folder, host, num_hosts)
        for path, data in files.items():
            place = checkpoints.folder.path / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
        notes: list[str] = []
        checkpoints.start(Listeners(tell=lambda facts: None, say=notes.append, note=notes.append))
        outcome = checkpoints.flush(60.0)
        checkpoints.close()
        assert outcome == Flushed()
        return checkpoints.folder.path, notes

    return act


def keys_below(client, prefix: str) -> list[str]:
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
    return [item["Key"].removeprefix(prefix) for page in pages for item in page.get("Contents", [])]


@pytest.mark.timeout(120)
def test_two_hosts_under_one_prefix_restore_the_files_of_both(weed, client, mirrored, tmp_path: Path) -> None:
    prefix = f"s3://{BUCKET}/two"
    hosts = ("algo-1", "algo-2")
    files = {host: {f"of-{host}/shard": host.encode() * 2_000_000, "shared": host.encode()} for host in hosts}
    processes = [start(weed, prefix, tmp_path / f"{host}-0", host=host, num_hosts=2, seconds=0.0) for host in hosts]
    for process in processes:
        assert json.loads(process.communicate(timeout=60)[0].splitlines()[-1]) == []
    for host in hosts:
        mirrored(prefix, tmp_path / f"{host}-1", files[host], host=host, num_hosts=2)
    _, notes = mirrored(prefix, tmp_path / "again", {}, num_hosts=2)
    assert any("algo-1 and algo-2 both write 'shared'" in note for note in notes)
    for host in hosts:
        path = restore_into(weed, prefix, tmp_path / f"{host}-2", host, 2).folder.path
        both = {f"of-{name}/shard": files[name][f"of-{name}/shard"] for name in hosts}
        found = {place.relative_to(path).as_posix(): place for place in path.rglob("*") if place.is_file()}
        assert {name: place.read_bytes() for name, place in found.items()} == {**both, "shared": host.encode()}
    assert client.get_object(Bucket=BUCKET, Key="two/of-algo-2/shard")["Body"].read() == b"algo-2" * 2_000_000
    assert client.get_object(Bucket=BUCKET, Key="two/shared")["Body"].read() == b"algo-1"


@pytest.mark.timeout(120)
def test_replaced_files_are_finally_stored_only_under_their_plain_keys(weed, client, mirrored, tmp_path: Path) -> None:
    prefix = f"s3://{BUCKET}/plain/"
    names = ("small", "large", "a b+c/%41 ?#", "\u65e5\u672c/e&<>'\"", "s=a,b;c:d@e$f!g*(h)")
    files = {name: b"x" * (17 << 20 if name == "large" else 9) for name in names}
    path, _ = mirrored(prefix, tmp_path / "first", files)
    checkpoints = restore_into(weed, prefix, tmp_path / "second")
    facts: list[CheckpointFacts] = []
    checkpoints.start(Listeners(tell=facts.append, say=print, note=print))
    for number in range(4):  # the fourth set is the second since the plain keys were named
        for name in names if number == 0 else ("new",):
            place = checkpoints.folder.path / name
            place.write_bytes(b"y" * (len(files[name]) if number == 0 else number))
        deadline_s = time.monotonic() + 30
        while not facts or facts[-1].set_number != number + 2 or facts[-1].dirty_files:
            assert time.monotonic() < deadline_s, facts[-1:]
            time.sleep(0.05)
    assert checkpoints.flush(60.0) == Flushed()
    checkpoints.close()
    keys = keys_below(client, "plain/")
    assert set(names) <= set(keys)
    assert sum("/files/" in key for key in keys) <= 2, "own places are given up once plain keys hold the same"
    assert sum("/set-" in key for key in keys) == 3
    for name in names:
        assert client.get_object(Bucket=BUCKET, Key=f"plain/{name}")["Body"].read()[:9] == b"y" * 9
    path, _ = mirrored(prefix, tmp_path / "last", {})
    assert (path / "large").read_bytes() == b"y" * (17 << 20)


@pytest.mark.long(10)
@pytest.mark.timeout(120)
def test_a_prefix_with_empty_parts_is_restored(mirrored, client, tmp_path: Path) -> None:
    for life in range(2):
        path, _ = mirrored(f"s3://{BUCKET}/empty//parts", tmp_path / f"life-{life}", {f"of-{life}": b"x"})
    assert sorted(place.name for place in path.iterdir()) == ["of-0", "of-1"]
    assert client.get_object(Bucket=BUCKET, Key="empty//parts/of-1")["Body"].read() == b"x"


@pytest.mark.timeout(120)
def test_names_that_the_store_lists_in_another_form_are_restored_too(weed, mirrored, tmp_path: Path) -> None:
    names = [
        "back\\slash",
        "new\nline",
        "\x01",
        "a/.versions/b",
        "c.versions/d",
        ".uploads/x",
        "x ",
        "...",
        "%2e%2e",
        "/".join("y" * 200 for _ in range(6)),
    ]
    prefix = f"s3://{BUCKET}/names"
    _, notes = mirrored(prefix, tmp_path / "first", {name: name[:9].encode() for name in names})
    assert [note for note in notes if "kept in the set alone" in note] == notes
    assert len(notes) == 1
    restored = restore_into(weed, prefix, tmp_path / "second")
    assert restored.warnings == ()
    for name in names:
        assert (restored.folder.path / name).read_bytes() == name[:9].encode()


@pytest.mark.timeout(120)
def test_a_store_that_does_not_respond_does_not_block_a_flush(weed, tmp_path: Path) -> None:
    with faulty_gateway(weed["url"]) as gateway:
        checkpoints = restore_into({**weed, "url": gateway.url}, f"s3://{BUCKET}/stalls", tmp_path / "in")
        gateway.fail("stall", lambda method, path: method == "PUT", times=1000)
        (checkpoints.folder.path / "model.pt").write_bytes(b"x" * 1000)
        facts: list[CheckpointFacts] = []
        notes: list[str] = []
        checkpoints.start(Listeners(tell=facts.append, say=notes.append, note=notes.append))
        deadline_s = time.monotonic() + 30
        while not any(item.stalled_since for item in facts):
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        started_s = time.monotonic()
        outcome = checkpoints.flush(1.0)
        assert time.monotonic() - started_s < 10
        gateway.released.set()
        checkpoints.close()
    assert outcome.missed == ("model.pt",)
    assert any(note.startswith("checkpoints are stalled: 1 files, 1000 bytes") for note in notes)
