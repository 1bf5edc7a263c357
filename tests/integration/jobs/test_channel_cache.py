"""The channel cache with a real SeaweedFS: counted GETs, killed agents, concurrent agents."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from faulty_gateway import faulty_gateway
from weed_servers import KEYS, running_weed

from clary.agent.channels import fetch_channel, select_objects
from clary.agent.channels.cache import ChannelCache
from clary.agent.channels.cache.naming import is_as_stored
from clary.contract.launch_plan import Channel, Endpoint
from clary.contract.ml_tree import MlTree
from clary.contract.object_store import ObjectStore

MIB = 1 << 20
PROGRAM = Path(__file__).with_name("channel_cache_program.py")
NUM_KILLS = 30
NUM_FILES = 100  # files of a channel: creating its tree takes long enough for many of the kills
LINE_LIMIT_S = 60.0
ROUNDS_A_SNAPSHOT = 10  # in one of this many rounds the kill waits for a complete snapshot


@pytest.fixture(scope="module")
def weed(tmp_path_factory):
    with running_weed(tmp_path_factory.mktemp("weed")) as running:
        yield running


class Counted:
    """A store behind a gateway that counts requests."""

    def __init__(self, gateway, store) -> None:
        self.url = gateway.url
        self.store = store
        self._gateway = gateway

    def num_gets(self) -> int:
        """Return the number of objects requested since the last call, without listings."""
        with self._gateway.lock:
            asked = list(self._gateway.requests)
            self._gateway.requests.clear()
        return sum(1 for method, path, _ in asked if method == "GET" and "list-type" not in path)


@pytest.fixture
def counted(weed):
    with faulty_gateway(weed.endpoint.url) as gateway:
        endpoint = Endpoint(url=gateway.url, region="us-west-2", credentials=KEYS)
        with ObjectStore(endpoint) as store:
            yield Counted(gateway, store)


def files(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_a_second_run_requests_no_object_of_any_size(counted, weed, tmp_path):
    sizes = {"empty": 0, "small": 1000, "part": 16 * MIB, "ranges": 40 * MIB + 3}
    blobs = {name: random.Random(size).randbytes(size) for name, size in sizes.items()}
    with ObjectStore(weed.endpoint) as store:
        for name, blob in blobs.items():  # large objects in several parts, whose ETags are no hashes of the content
            store.upload_stream("data", f"sizes/{name}", io.BytesIO(blob))
    expected = {name: hashlib.sha256(blob).hexdigest() for name, blob in blobs.items()}
    channel = Channel(name="train", s3_uri="s3://data/sizes")
    gets = []
    for _ in range(2):
        cache = ChannelCache(tmp_path / "cache", limit_bytes=256 * MIB, endpoint_url=counted.url)
        tree = MlTree(tmp_path / "ml")
        facts = fetch_channel(channel, store=counted.store, tree=tree, host_index=0, num_hosts=1, cache=cache)
        assert facts.snapshot is not None, facts.summary
        assert files(facts.snapshot.path) == expected
        facts.snapshot.release()
        gets.append(counted.num_gets())
    assert gets[0] >= 4
    assert gets[1] == 0
    with ObjectStore(weed.endpoint) as store:
        store.put_bytes("data", "sizes/small", b"changed")
    facts = fetch_channel(channel, store=counted.store, tree=tree, host_index=0, num_hosts=1, cache=cache)
    assert counted.num_gets() == 1
    assert facts.summary.endswith("3 from this machine's cache, 1 fetched")
    assert (facts.snapshot.path / "small").read_bytes() == b"changed"
    facts.snapshot.release()


@pytest.mark.parametrize("size", [1000, 40 * MIB])
def test_the_store_refuses_a_request_for_a_replaced_version(counted, weed, tmp_path, size):
    key = f"versions/{size}"
    with ObjectStore(weed.endpoint) as store:
        for seed in (1, 2):
            store.upload_stream("data", key, io.BytesIO(random.Random(seed).randbytes(size)))
            if seed == 1:
                former = store.head("data", key)
    with pytest.raises(Exception, match="412") as caught:
        counted.store.download("data", key, tmp_path / "out", size_bytes=size, etag=former.etag)
    assert caught.value.details["status"] == 412
    assert not (tmp_path / "out").exists()


class Agent:
    """A process that fills the cache."""

    def __init__(self, *arguments: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), *map(str, arguments)], stdout=subprocess.PIPE, text=True
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def wait_for(self, text: str) -> None:
        deadline = time.monotonic() + LINE_LIMIT_S
        while not any(text in line for line in self.lines):
            assert time.monotonic() < deadline, self.lines
            assert self.process.poll() is None, self.lines
            time.sleep(0.01)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        self.process.stdout.close()

    def _read(self) -> None:
        self.lines.extend(iter(self.process.stdout.readline, ""))


def stock(store: ObjectStore) -> list[dict[str, str]]:
    """Store the channels of the program; return every tree that it may create from them, as names and hashes."""
    trees = []
    chance = random.Random(7)
    for name in ("one", "two", "three"):
        plain, packed = {}, {}
        for index in range(NUM_FILES):
            blob = chance.randbytes(chance.randrange(20_000))
            store.put_bytes("data", f"{name}/None/sub/{index}", blob)
            store.put_bytes("data", f"{name}/Gzip/sub/{index}.gz", gzip.compress(blob, 1))
            plain[f"sub/{index}"] = packed[f"sub/{index}.gz"] = hashlib.sha256(blob).hexdigest()
        trees += [dict(sorted(tree.items())[first:]) for tree in (plain, packed) for first in range(3)]
    return trees


def check(root: Path, trees: list[dict[str, str]]) -> int:
    """Compare every tree under a final name with the expected ones; return the number of snapshots."""
    num_snapshots = 0
    for snapshot in (root / "snapshots").glob("*/*"):
        assert files(snapshot) in trees, snapshot
        num_snapshots += 1
    everything = set().union(*(tree.values() for tree in trees))
    for path in (root / "objects").rglob("*"):
        if path.is_file():
            assert is_as_stored(path.stat(), name=path.name), path
            assert hashlib.sha256(path.read_bytes()).hexdigest() in everything, path
    return num_snapshots


@pytest.mark.timeout(300)
@pytest.mark.long(35)
def test_agents_killed_at_any_moment_leave_no_partial_tree_under_a_final_name(weed, tmp_path):
    root = tmp_path / "cache"
    with ObjectStore(weed.endpoint) as store:
        trees = stock(store)
        chance = random.Random(11)
        num_snapshots = 0
        for number in range(NUM_KILLS):
            # The limit holds about five of the six sets of objects, so that some are always being evicted.
            with contextlib.ExitStack() as killing:
                agents = []
                for index in range(2):
                    agents.append(Agent(root, weed.endpoint.url, 5_000_000, f"{number}-{index}"))
                    killing.callback(agents[-1].kill)
                for agent in agents:
                    agent.wait_for("begun")
                if number % ROUNDS_A_SNAPSHOT == 0:
                    agents[0].wait_for("left")
                else:
                    time.sleep(chance.uniform(0.0, 0.6))
            num_snapshots += check(root, trees)
        assert num_snapshots > 0
        # The next agent can use the complete entries and removes the partial ones.
        cache = ChannelCache(root, limit_bytes=50_000_000, endpoint_url=weed.endpoint.url)
        for name in ("one", "two", "three"):
            channel = Channel(name=name, s3_uri=f"s3://data/{name}/None")
            selection = select_objects(channel, store=store)
            snapshot = cache.snapshot(selection.objects, selection.folders, channel=channel, store=store)
            assert len(files(snapshot.path)) == NUM_FILES
            snapshot.release()
        cache.tidy()
        check(root, trees)
        assert list((root / "filling").iterdir()) == []


@pytest.mark.timeout(120)
def test_agents_that_fill_the_cache_concurrently_request_each_object_once(counted, weed, tmp_path):
    with ObjectStore(weed.endpoint) as store:
        for index in range(40):
            store.put_bytes("data", f"shared/{index:02}", random.Random(index).randbytes(50_000))
    channel = Channel(name="shared", s3_uri="s3://data/shared")
    counted.num_gets()
    outcomes = []

    def host(number: int) -> None:
        cache = ChannelCache(tmp_path / "cache", limit_bytes=64 * MIB, endpoint_url=counted.url)
        tree = MlTree(tmp_path / f"ml-{number}")
        outcomes.append(
            fetch_channel(channel, store=counted.store, tree=tree, host_index=number, num_hosts=4, cache=cache)
        )

    hosts = [threading.Thread(target=host, args=(number,)) for number in range(4)]
    for thread in hosts:
        thread.start()
    for thread in hosts:
        thread.join(100)
    assert [facts.summary for facts in outcomes if facts.snapshot is None] == []
    assert len(outcomes) == 4
    assert counted.num_gets() == 40
    assert len({facts.snapshot.path for facts in outcomes}) == 1
    for facts in outcomes:
        facts.snapshot.release()
