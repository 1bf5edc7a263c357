"""Hosts that are killed while they mirror to a real SeaweedFS: what is restored is whole, each time."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from checkpoint_mirror_program import newest_step, restore_into
from objects_service import BUCKET, STORE, ServiceThread

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
    import boto3

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
def test_thirty_kills_leave_no_torn_restore(weed, tmp_path: Path) -> None:
    dice = random.Random(3)
    prefix = f"s3://{BUCKET}/kills"
    reached = []
    for number in range(NUM_KILLS):
        process = start(weed, prefix, tmp_path / f"life-{number}")
        time.sleep(dice.uniform(0.1, 2.5))
        process.kill()
        process.communicate()
        restored = restore_into(weed, prefix, tmp_path / f"after-{number}")
        assert restored.warnings == ()
        reached.append(newest_step(restored.folder.path))
        shutil.rmtree(tmp_path / f"after-{number}")
        shutil.rmtree(tmp_path / f"life-{number}")
    assert reached == sorted(reached)
    assert reached[-1] >= NUM_KILLS // 3


@pytest.mark.timeout(120)
def test_two_hosts_under_one_prefix_find_all_of_it_again(weed, client, tmp_path: Path) -> None:
    prefix = f"s3://{BUCKET}/two"
    hosts = ("algo-1", "algo-2")
    processes = [start(weed, prefix, tmp_path / host, host=host, num_hosts=2, seconds=0.0) for host in hosts]
    for process in processes:
        assert json.loads(process.communicate(timeout=60)[0].splitlines()[-1]) == []
    for host in hosts:
        checkpoints = restore_into(weed, prefix, tmp_path / f"{host}-own", host, 2)
        (checkpoints.folder.path / f"of-{host}").mkdir()
        (checkpoints.folder.path / f"of-{host}/shard").write_bytes(host.encode() * 2_000_000)
        (checkpoints.folder.path / "shared").write_text(host)
        from clary.agent.checkpoints.outcomes import Listeners

        notes: list[str] = []
        checkpoints.start(Listeners(tell=lambda facts: None, say=notes.append, note=notes.append))
        assert checkpoints.flush(60.0).missed == ()
        checkpoints.close()
    again = restore_into(weed, prefix, tmp_path / "again-1", "algo-1", 2)
    from clary.agent.checkpoints.outcomes import Listeners

    again.start(Listeners(tell=lambda facts: None, say=notes.append, note=notes.append))
    assert again.flush(60.0).missed == ()
    again.close()
    assert any("algo-1 and algo-2 both write 'shared'" in note for note in notes)
    for host in hosts:
        path = restore_into(weed, prefix, tmp_path / f"last-{host}", host, 2).folder.path
        assert (path / "shared").read_text() == host
        assert {place.name for place in path.iterdir()} == {"of-algo-1", "of-algo-2", "shared"}
    body = client.get_object(Bucket=BUCKET, Key="two/of-algo-2/shard")["Body"].read()
    assert body == b"algo-2" * 2_000_000
