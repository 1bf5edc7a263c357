"""Results of one and of several hosts, uploaded to a store in memory."""

from __future__ import annotations

import io
import os
import tarfile
from dataclasses import replace

import pytest

from clary.agent.archives import trees
from clary.agent.artifacts import results, upload_results
from clary.agent.artifacts.staging import ResultKind, result_sources
from clary.base.errors import AgentError, ObjectStoreError
from clary.contract.agent_protocol import StagedPart, UploadRole
from clary.contract.launch_plan import Output
from clary.contract.ml_tree import MlTree
from clary.testing.fake_object_store import FakeObjectStore
from clary.testing.launch_plans import JOB_NAME, make_hosts, make_plan

BASE = f"out/{JOB_NAME}/output"
MODEL = f"{BASE}/model.tar.gz"
OUTPUT = f"{BASE}/output.tar.gz"
LOOSE = Output(
    s3_output_path="s3://bucket/out",
    model_uri=f"s3://bucket/{BASE}/model/",
    output_uri=f"s3://bucket/{BASE}/data/",
    is_compressed=False,
)


class Cluster:
    """Hosts of one attempt, each with its tree, which share one store."""

    def __init__(self, folder, num_hosts: int = 1, **plan) -> None:
        self.store = FakeObjectStore()
        self.plan = make_plan(hosts=make_hosts(num_hosts), **plan)
        self.trees = {host.name: MlTree(folder / host.name / "ml") for host in self.plan.hosts}
        for tree in self.trees.values():
            tree.model.mkdir(parents=True)
            tree.output_data.mkdir(parents=True)

    def write(self, host: str, name: str, data: str | bytes) -> None:
        path = self.trees[host].root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)

    def stage(self, host: str):
        return upload_results(UploadRole.STAGE, plan=self.plan, host=host, tree=self.trees[host], store=self.store)

    def lead(self, staged: tuple[StagedPart, ...] = (), host: str = "algo-1", **options):
        tree = self.trees[host]
        return upload_results(
            UploadRole.LEAD, plan=self.plan, host=host, tree=tree, store=self.store, staged=staged, **options
        )

    def stage_others(self, leader: str = "algo-1") -> tuple[StagedPart, ...]:
        return tuple(part for name in self.trees if name != leader for part in self.stage(name).staged)

    def keys(self) -> list[str]:
        return sorted(key for _, key in self.store.objects)

    def archive(self, key: str) -> dict[str, bytes | str | None]:
        """Return the members of an archive: the content of files, the target of links, None for folders."""
        with tarfile.open(fileobj=io.BytesIO(self.store.objects["bucket", key]), mode="r:gz") as tar:
            members = tar.getmembers()
            assert len({info.name for info in members}) == len(members)
            return {
                info.name: info.linkname if info.issym() else None if info.isdir() else tar.extractfile(info).read()
                for info in members
            }


@pytest.fixture
def one(tmp_path):
    return Cluster(tmp_path)


@pytest.fixture
def three(tmp_path):
    return Cluster(tmp_path, 3)


def test_a_job_that_failed_has_no_model_where_no_host_made_one(three):
    three.write("algo-2", "output/failure", "boom")
    staged = three.stage_others()
    for _ in range(2):  # the leader may receive the order again after the staged parts were removed
        assert three.lead(staged, omits_empty_model=True).uploaded == (three.plan.output.output_uri,)
    assert three.keys() == ["out/job-1/output/output.tar.gz"]


def test_a_job_that_failed_keeps_the_model_that_it_made(one):
    one.write("algo-1", "model/weights", "w")
    assert one.lead(omits_empty_model=True).uploaded == (one.plan.output.model_uri,)


def test_results_are_empty_only_where_no_host_has_any(tmp_path):
    clusters = {
        path: Cluster(tmp_path / str(number), 3) for number, path in enumerate(("", "model/w", "output/failure"))
    }
    for path, cluster in clusters.items():
        if path:
            cluster.write("algo-2", path, "w")
        staged = cluster.stage_others()
        facts = cluster.lead(staged)
        assert facts.uploaded
        assert facts.is_empty is (not path), path
        if staged:
            assert cluster.lead(staged).is_empty is False, "the parts are gone, and nothing is known about the objects"


def test_one_host_uploads_model_and_output(one):
    one.write("algo-1", "model/weights.bin", b"w" * 100)
    one.write("algo-1", "model/code/inference.py", "def model_fn(): ...")
    one.write("algo-1", "output/data/plot.png", "png")
    facts = one.lead()
    assert facts.uploaded == (f"s3://bucket/{MODEL}", f"s3://bucket/{OUTPUT}")
    assert one.archive(MODEL) == {
        "weights.bin": b"w" * 100,
        "code": None,
        "code/inference.py": b"def model_fn(): ...",
    }
    assert one.archive(OUTPUT) == {"plot.png": b"png"}
    assert one.keys() == [MODEL, OUTPUT]
    assert facts.notes == ()


def test_empty_model_is_still_an_archive_and_empty_output_is_none(one):
    facts = one.lead()
    assert facts.uploaded == (f"s3://bucket/{MODEL}",)
    assert one.archive(MODEL) == {}
    assert one.keys() == [MODEL]


def test_failure_file_is_added_to_the_output_data(one):
    one.write("algo-1", "output/failure", "Traceback " * 500)
    one.write("algo-1", "output/data/log.txt", "log")
    one.lead()
    assert one.archive(OUTPUT) == {"failure": b"Traceback " * 500, "log.txt": b"log"}


def test_failure_file_alone_makes_an_output(one):
    one.write("algo-1", "output/failure", "why")
    assert f"s3://bucket/{OUTPUT}" in one.lead().uploaded
    one.write("algo-1", "output/failure", "")
    one.store.objects.clear()
    assert f"s3://bucket/{OUTPUT}" not in one.lead().uploaded


def test_data_called_failure_wins_over_the_failure_file_with_a_note(one):
    one.write("algo-1", "output/failure", "why")
    one.write("algo-1", "output/data/failure", "mine")
    facts = one.lead()
    assert one.archive(OUTPUT) == {"failure": b"mine"}
    assert "failure" in facts.notes[0]


def test_host_without_results_stages_nothing(three):
    assert three.stage("algo-2").staged == ()
    assert three.keys() == []


def test_staged_parts_lie_beside_the_final_objects_below_their_attempt(three):
    three.write("algo-2", "model/m", "mm")
    three.write("algo-2", "output/data/d", "dd")
    parts = three.stage("algo-2").staged
    assert [part.uri for part in parts] == [
        f"s3://bucket/{BASE}/.clary-staging/1/algo-2-model.tar",
        f"s3://bucket/{BASE}/.clary-staging/1/algo-2-output.tar",
    ]
    assert [(part.host, part.kind, part.num_files) for part in parts] == [
        ("algo-2", "model", 1),
        ("algo-2", "output", 1),
    ]
    again = three.stage("algo-2").staged
    assert again == parts


def test_trees_of_all_hosts_become_one_archive_and_staging_is_removed(three):
    three.write("algo-1", "model/shard-0", "0")
    three.write("algo-2", "model/shard-1", "1")
    three.write("algo-3", "model/sub/shard-2", "2")
    three.write("algo-3", "output/data/only-here", "3")
    facts = three.lead(three.stage_others())
    assert three.archive(MODEL) == {"shard-0": b"0", "shard-1": b"1", "sub": None, "sub/shard-2": b"2"}
    assert three.archive(OUTPUT) == {"only-here": b"3"}
    assert three.keys() == [MODEL, OUTPUT]
    assert facts.notes == ()


def test_the_same_file_from_all_hosts_is_stored_once_without_a_note(three):
    for name in three.trees:
        three.write(name, "model/weights.bin", b"same" * 1000)
        three.write(name, "model/d/x", "x")
        (three.trees[name].model / "latest").symlink_to("weights.bin")
    facts = three.lead(three.stage_others())
    assert three.archive(MODEL) == {
        "weights.bin": b"same" * 1000,
        "latest": "weights.bin",
        "d": None,
        "d/x": b"x",
    }
    assert facts.notes == ()


def test_different_files_of_one_name_keep_the_first_hosts_with_a_note(three):
    for name in three.trees:
        three.write(name, "model/weights.bin", f"of {name}")
    facts = three.lead(three.stage_others())
    assert three.archive(MODEL) == {"weights.bin": b"of algo-1"}
    assert facts.notes == (
        "model: hosts differ, the first one's version is kept: weights.bin (of algo-1, not algo-2), "
        "weights.bin (of algo-1, not algo-3)",
    )


def test_first_host_wins_even_if_another_one_leads(three):
    for name in three.trees:
        three.write(name, "model/weights.bin", f"of {name}")
    three.lead(three.stage_others(leader="algo-2"), host="algo-2")
    assert three.archive(MODEL) == {"weights.bin": b"of algo-1"}


def test_a_file_of_one_host_and_a_folder_of_another_with_its_name_do_not_merge(three):
    three.write("algo-1", "model/x", "file")
    three.write("algo-2", "model/x/y", "below")
    three.write("algo-3", "model/x", "other file")
    facts = three.lead(three.stage_others())
    assert three.archive(MODEL) == {"x": b"file"}
    assert "x/y (of algo-1, not algo-2)" in facts.notes[0]
    assert "x (of algo-1, not algo-3)" in facts.notes[0]


def test_nothing_is_written_through_a_link_of_another_host(three):
    (three.trees["algo-1"].model / "best").symlink_to("sub")
    three.write("algo-1", "model/sub/a", "a")
    three.write("algo-2", "model/best/b", "b")
    three.lead(three.stage_others())
    assert three.archive(MODEL) == {"best": "sub", "sub": None, "sub/a": b"a"}


def test_the_same_trees_give_the_same_bytes_again(three):
    for name in three.trees:
        three.write(name, "model/weights.bin", os.urandom(10))
        three.write(name, f"model/{name}", "x")
    three.lead(three.stage_others())
    first = three.store.objects["bucket", MODEL]
    three.lead(three.stage_others())
    assert three.store.objects["bucket", MODEL] == first


def test_leading_again_after_staging_was_removed_changes_nothing(three):
    three.write("algo-2", "model/m", "mm")
    three.write("algo-2", "output/data/d", "dd")
    parts = three.stage_others()
    first = three.lead(parts)
    objects = dict(three.store.objects)
    again = three.lead(parts)
    assert again.uploaded == first.uploaded
    assert three.store.objects == objects


def test_leading_again_when_staging_was_removed_in_part_finishes_the_removal(three):
    three.write("algo-2", "model/m", "mm")
    three.write("algo-3", "model/n", "nn")
    parts = three.stage_others()
    saved = {place: three.store.objects[place] for place in three.store.objects if "algo-3" in place[1]}
    three.lead(parts)
    three.store.objects.update(saved)
    three.lead(parts)
    assert three.keys() == [MODEL]
    assert set(three.archive(MODEL)) == {"m", "n"}


def test_staged_part_that_vanished_before_the_merge_is_an_error(three):
    three.write("algo-2", "model/m", "mm")
    parts = three.stage_others()
    three.store.objects.clear()
    with pytest.raises(AgentError, match=r"algo-2.*are gone"):
        three.lead(parts)


def test_model_of_another_attempt_does_not_excuse_a_vanished_part(three):
    three.write("algo-2", "model/m", "mm")
    parts = three.stage_others()
    three.lead(())
    for part in parts:
        three.store.delete("bucket", part.uri.removeprefix("s3://bucket/"))
    with pytest.raises(AgentError, match="are gone"):
        three.lead(parts)


def test_staged_part_of_another_size_is_an_error(three):
    three.write("algo-2", "model/m", "mm")
    (part,) = three.stage_others()
    three.store.put_bytes("bucket", part.uri.removeprefix("s3://bucket/"), b"short")
    with pytest.raises(AgentError, match="not whole"):
        three.lead((part,))
    assert ("bucket", MODEL) not in three.store.objects


def test_damaged_staged_part_is_an_error_and_no_model_appears(three):
    three.write("algo-2", "model/m", "mm")
    (part,) = three.stage_others()
    place = ("bucket", part.uri.removeprefix("s3://bucket/"))
    three.store.objects[place] = bytes(part.size_bytes)
    with pytest.raises(AgentError, match="were replaced"):
        three.lead((part,))
    part = replace(part, etag="")  # of a store that names no ETags
    with pytest.raises(AgentError, match="incomplete"):
        three.lead((part,))
    three.store.objects[place] = b"\xff" * part.size_bytes
    with pytest.raises(AgentError, match="cannot be unpacked"):
        three.lead((part,))
    assert ("bucket", MODEL) not in three.store.objects


def test_part_of_an_unknown_host_is_an_error(one):
    part = StagedPart(host="algo-9", kind="model", uri="s3://bucket/x", size_bytes=1, num_files=1)
    with pytest.raises(AgentError, match="no host algo-9"):
        one.lead((part,))


@pytest.mark.parametrize("key", [MODEL, OUTPUT])
def test_refused_upload_is_an_error_and_keeps_the_staged_parts(three, key):
    three.write("algo-2", "model/m", "mm")
    three.write("algo-2", "output/data/d", "dd")
    parts = three.stage_others()
    three.store.fail_on.add(("PUT", key))
    with pytest.raises(ObjectStoreError):
        three.lead(parts)
    assert all(("bucket", part.uri.removeprefix("s3://bucket/")) in three.store.objects for part in parts)
    three.store.fail_on.clear()
    assert len(three.lead(parts).uploaded) == 2


def test_object_that_the_store_lost_is_an_error(one, monkeypatch):
    monkeypatch.setattr(one.store, "head", lambda bucket, key: None)
    with pytest.raises(AgentError, match="no object"):
        one.lead()


def test_leftovers_of_earlier_attempts_are_removed_too(one):
    one.store.put_bytes("bucket", f"{BASE}/.clary-staging/0/algo-2-model.tar", b"old")
    one.store.put_bytes("bucket", f"out/{JOB_NAME}-2/output/.clary-staging/1/x", b"of another job")
    one.lead()
    assert one.keys() == [f"out/{JOB_NAME}-2/output/.clary-staging/1/x", MODEL]


@pytest.mark.parametrize("method", ["delete", "list_objects"])
def test_staged_parts_that_cannot_be_removed_are_a_note_because_the_results_are_complete(three, monkeypatch, method):
    three.write("algo-2", "model/m", "mm")
    parts = three.stage_others()

    def refused(*_arguments):
        raise ObjectStoreError("s3:DeleteObject is denied")

    monkeypatch.setattr(three.store, method, refused)
    facts = three.lead(parts)
    assert facts.uploaded == (f"s3://bucket/{MODEL}",)
    assert [note for note in facts.notes if "s3:DeleteObject is denied" in note and ".clary-staging" in note]
    assert three.archive(MODEL) == {"m": b"mm"}
    assert three.lead(parts).uploaded == facts.uploaded  # the order may come again
    monkeypatch.undo()
    three.lead(parts)
    assert three.keys() == [MODEL]


def test_a_repeated_removal_that_fails_again_is_a_note_too(three, monkeypatch):
    three.write("algo-2", "model/m", "mm")
    three.write("algo-3", "model/n", "nn")
    parts = three.stage_others()
    saved = {place: three.store.objects[place] for place in three.store.objects if "algo-3" in place[1]}
    first = three.lead(parts)
    three.store.objects.update(saved)

    def refused(*_arguments):
        raise ObjectStoreError("s3:DeleteObject is denied")

    monkeypatch.setattr(three.store, "delete", refused)
    again = three.lead(parts)
    assert again.uploaded == first.uploaded
    assert "s3:DeleteObject is denied" in again.notes[0]


def test_results_that_cannot_be_read_are_an_error_naming_them(one, monkeypatch):
    one.write("algo-1", "model/weights.bin", "w")
    real_open = trees.open_regular

    def refuse(folder, name):
        if name == "weights.bin":
            raise OSError(5, "Input/output error")
        return real_open(folder, name)

    monkeypatch.setattr(trees, "open_regular", refuse)
    with pytest.raises(AgentError, match=r"weights\.bin.*Input/output error"):
        one.lead()


@pytest.fixture
def loose(tmp_path):
    return Cluster(tmp_path, 2, output=LOOSE)


def test_without_compression_every_file_is_an_object(loose):
    big = os.urandom((16 << 20) + 5)
    loose.write("algo-1", "model/weights.bin", big)
    loose.write("algo-1", "model/code/x.py", "x")
    (loose.trees["algo-1"].model / "latest").symlink_to("code/x.py")
    (loose.trees["algo-1"].model / "empty").mkdir()
    loose.write("algo-2", "model/other", "o")
    loose.write("algo-2", "output/data/plot", "p")
    (loose.trees["algo-2"].model / "leak").symlink_to("/etc/hostname")
    parts = tuple(loose.stage("algo-2").staged)
    facts = loose.lead(parts)
    assert facts.uploaded == (LOOSE.model_uri, LOOSE.output_uri)
    got = {key.removeprefix(BASE): data for (_, key), data in loose.store.objects.items()}
    assert got == {
        "/model/weights.bin": big,
        "/model/code/x.py": b"x",
        "/model/latest": b"x",
        "/model/other": b"o",
        "/data/plot": b"p",
    }


def test_uncompressed_results_can_be_led_again_after_staging_was_removed(loose):
    loose.write("algo-2", "model/m", "mm")
    loose.write("algo-1", "output/data/d", "dd")
    parts = loose.stage("algo-2").staged
    first = loose.lead(parts)
    assert loose.lead(parts).uploaded == first.uploaded
    assert loose.keys() == [f"{BASE}/data/d", f"{BASE}/model/m"]


def test_incomplete_uncompressed_results_do_not_excuse_a_vanished_part(loose):
    loose.write("algo-2", "model/m", "mm")
    loose.write("algo-1", "model/n", "nn")
    parts = loose.stage("algo-2").staged
    loose.store.fail_on.add(("PUT", f"{BASE}/model/n"))
    with pytest.raises(ObjectStoreError):
        loose.lead(parts)
    loose.store.fail_on.clear()
    loose.store.delete("bucket", parts[0].uri.removeprefix("s3://bucket/"))
    with pytest.raises(AgentError, match="are gone"):
        loose.lead(parts)


def test_uncompressed_results_that_the_store_lost_are_an_error(loose, monkeypatch):
    loose.write("algo-1", "model/m", "mm")
    monkeypatch.setattr(loose.store, "list_objects", lambda bucket, prefix: iter(()))
    with pytest.raises(AgentError, match="not in the object store"):
        loose.lead()


def test_a_mark_that_is_refused_is_a_note_and_keeps_the_staged_parts_for_a_repetition(loose, monkeypatch):
    loose.write("algo-2", "model/m", "mm")
    parts = loose.stage("algo-2").staged

    def refused(*_arguments, **_options):
        raise ObjectStoreError("the copy is denied")

    monkeypatch.setattr(results.LooseSink, "mark", refused)
    facts = loose.lead(parts)
    assert facts.uploaded == (LOOSE.model_uri,)
    assert [note for note in facts.notes if "the copy is denied" in note]
    assert loose.lead(parts).uploaded == facts.uploaded
    monkeypatch.undo()
    loose.lead(parts)
    assert loose.keys() == [f"{BASE}/model/m"]


def test_empty_uncompressed_results_write_nothing(loose):
    assert loose.lead().uploaded == ()
    assert loose.keys() == []


def test_stage_notes_name_the_host(three):
    (three.trees["algo-2"].model / "leak").symlink_to("/etc/hostname")
    facts = three.stage("algo-2")
    assert facts.notes[0].startswith("algo-2: model: kept without content")


def test_a_failure_file_is_not_read_through_a_link(tmp_path):
    tree = MlTree(tmp_path / "ml")
    assert len(result_sources(ResultKind.OUTPUT, tree)) == 1
    tree.output_data.mkdir(parents=True)
    tree.failure.write_text("")
    assert len(result_sources(ResultKind.OUTPUT, tree)) == 1
    tree.failure.write_text("why")
    assert len(result_sources(ResultKind.OUTPUT, tree)) == 2
    output = tree.failure.parent
    output.rename(tmp_path / "elsewhere")
    output.symlink_to(tmp_path / "elsewhere")
    assert len(result_sources(ResultKind.OUTPUT, tree)) == 1
    output.unlink()
    output.mkdir()
    tree.failure.symlink_to(tmp_path / "elsewhere" / "failure")
    assert len(result_sources(ResultKind.OUTPUT, tree)) == 1
