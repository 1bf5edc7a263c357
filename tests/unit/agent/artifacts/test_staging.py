"""Staged results that another program has replaced: the leader reads the object of their host, and no more."""

from __future__ import annotations

import gzip
import io
import tarfile
import tracemalloc
from dataclasses import replace

import pytest

from clary.agent.artifacts.staging import ResultKind, missing_parts, stage_results, staged_members
from clary.agent.notes import NoteBook
from clary.base.errors import AgentError, ObjectStoreError
from clary.base.plain import from_plain, to_plain
from clary.contract.agent_protocol import StagedPart
from clary.contract.ml_tree import MlTree
from clary.contract.object_store import parse_s3_uri
from clary.testing.fake_object_store import FakeObjectStore
from clary.testing.launch_plans import make_hosts, make_plan

MIB = 1024 * 1024


@pytest.fixture
def store():
    return FakeObjectStore()


@pytest.fixture
def part(tmp_path, store):
    """Return the part of a host with two files, a folder and a link."""
    tree = MlTree(tmp_path / "ml")
    (tree.model / "folder").mkdir(parents=True)
    (tree.model / "folder/weights").write_bytes(bytes(2 * MIB))
    (tree.model / "config").write_text("c")
    (tree.model / "link").symlink_to("config")
    plan = make_plan(hosts=make_hosts(2))
    return stage_results(ResultKind.MODEL, plan=plan, host="algo-2", tree=tree, store=store, notes=NoteBook())


def put(store: FakeObjectStore, part: StagedPart, data: bytes) -> None:
    """Replace the staged object by one of the same size."""
    assert len(data) <= part.size_bytes
    uri = parse_s3_uri(part.uri)
    store.put_bytes(uri.bucket, uri.key, data + bytes(part.size_bytes - len(data)))


def read(store: FakeObjectStore, part: StagedPart) -> list[str]:
    found = []
    for member in staged_members(part, store=store):
        while member.content is not None and member.content.read(MIB):
            pass
        found.append(member.name)
    return found


def tar_of(*infos: tarfile.TarInfo) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info in infos:
            tar.addfile(info)
    return data.getvalue()


def entries(num: int, kind: bytes, target: str = "") -> bytes:
    infos = [tarfile.TarInfo(f"{number}") for number in range(num)]
    for info in infos:
        info.type, info.linkname = kind, target
    return tar_of(*infos)


def without_etag(part: StagedPart) -> StagedPart:
    """Return the part as a store that names no ETag, or a host of an older release, gives it."""
    return replace(part, etag="")


def test_a_part_names_the_version_that_its_host_wrote_and_counts_its_members(store, part):
    uri = parse_s3_uri(part.uri)
    assert part.etag == store.head(uri.bucket, uri.key).etag != ""
    assert (part.num_files, part.num_members) == (2, 4)
    assert sorted(read(store, part)) == ["config", "folder", "folder/weights", "link"]
    assert from_plain(StagedPart, to_plain(part)) == part


def test_a_part_of_an_older_release_is_read(store, part):
    old = to_plain(part)
    del old["etag"], old["num_members"]
    assert len(read(store, from_plain(StagedPart, old))) == 4


def test_a_replaced_part_of_the_same_size_is_refused_before_and_while_it_is_read(store, part):
    put(store, part, entries(4, tarfile.REGTYPE))
    with pytest.raises(AgentError, match="were replaced"):
        missing_parts((part,), store=store)
    with pytest.raises(ObjectStoreError, match="412"):
        read(store, part)


def test_a_gzip_stream_in_place_of_a_part_is_not_unpacked(store, part):
    put(store, part, gzip.compress(bytes(64 * MIB)))
    with pytest.raises(AgentError, match="expected a plain tar archive"):
        read(store, without_etag(part))


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE])
def test_a_part_has_no_more_members_than_its_host_wrote(store, part, kind):
    put(store, part, entries(2000, kind, "x"))
    with pytest.raises(AgentError, match="more than 4 members"):
        read(store, without_etag(part))


def test_a_part_of_an_older_release_has_no_more_members_than_fit_into_its_size(store, part):
    uri = parse_s3_uri(part.uri)
    store.put_bytes(uri.bucket, uri.key, entries(8000, tarfile.DIRTYPE))
    old = replace(part, etag="", num_members=0)
    with pytest.raises(AgentError, match=f"more than {part.size_bytes} bytes"):
        read(store, old)


def test_targets_of_links_and_pax_headers_take_no_memory(store, part):
    put(store, part, entries(1, tarfile.SYMTYPE, "x" * (MIB // 2)))
    with pytest.raises(AgentError, match="target of its link"):
        read(store, without_etag(part))
    headers = []
    for number in range(16):
        info = tarfile.TarInfo(f"{number}")
        info.pax_headers = {f"key{number}-{place}": "x" * 900 for place in range(100)}
        headers.append(info.create_pax_global_header(info.pax_headers))
    put(store, part, b"".join(headers) + entries(1, tarfile.REGTYPE))
    tracemalloc.start()
    try:
        with pytest.raises(AgentError, match="incomplete"):
            read(store, without_etag(part))
        left = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert left < MIB
