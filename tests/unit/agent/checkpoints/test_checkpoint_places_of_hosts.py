"""Paths of a host's checkpoint folder, and the log messages after a restore."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_checkpoint_store import FakeCheckpointStore

from clary.agent.checkpoints.host_checkpoints import HostCheckpoints
from clary.base.errors import AgentError, Fault
from clary.contract.launch_plan import Isolation
from clary.contract.ml_tree import MlTree
from clary.testing.launch_plans import make_hosts, make_plan


def checkpoints_in(folder: Path, *, host: str = "algo-1", num_hosts: int = 1, **changes: object) -> HostCheckpoints:
    plan = make_plan(**{"hosts": make_hosts(num_hosts), "checkpoint_s3_uri": "s3://bucket/ckpt", **changes})
    return HostCheckpoints(plan, host, tree=MlTree(folder / "ml"), host_folder=folder)


@pytest.mark.parametrize("isolation", list(Isolation))
@pytest.mark.parametrize(
    ("local_path", "below"),
    [
        (None, "checkpoints"),
        ("/opt/ml/checkpoints", "checkpoints"),
        ("/opt/ml/model/../output/x/", "output/x"),
    ],
)
def test_a_folder_of_the_tree_lies_in_the_tree(tmp_path: Path, isolation, local_path, below: str) -> None:
    found = checkpoints_in(tmp_path, isolation=isolation, checkpoint_local_path=local_path)
    assert found.folder.path == tmp_path / "ml" / below
    assert not found.is_bound
    inside = "/opt/ml" if isolation is Isolation.NAMESPACES else f"{tmp_path}/ml"
    assert found.folder.inside == f"{inside}/{below}"


def test_any_other_folder_is_bound_to_its_path(tmp_path: Path) -> None:
    found = checkpoints_in(tmp_path, checkpoint_local_path="/data/of/mine")
    assert found.is_bound
    assert found.folder.path == tmp_path / "checkpoints"
    assert found.folder.inside == str(found.local_path) == "/data/of/mine"


def test_plain_processes_use_the_path_as_it_is(tmp_path: Path) -> None:
    place = str(tmp_path / "mine")
    found = checkpoints_in(tmp_path, checkpoint_local_path=place, isolation=Isolation.PROCESSES)
    assert not found.is_bound
    assert str(found.folder.path) == place


def test_plain_processes_that_may_share_a_folder_get_a_warning(tmp_path: Path) -> None:
    plain = {"num_hosts": 2, "isolation": Isolation.PROCESSES}
    shared = checkpoints_in(tmp_path, checkpoint_local_path=str(tmp_path / "mine"), **plain)
    assert len(shared.warnings) == 1
    assert f"share {tmp_path / 'mine'}" in shared.warnings[0]
    assert checkpoints_in(tmp_path, **plain).warnings == ()
    alone = {**plain, "num_hosts": 1}
    assert checkpoints_in(tmp_path, checkpoint_local_path=str(tmp_path / "mine"), **alone).warnings == ()
    assert checkpoints_in(tmp_path, checkpoint_local_path="/data/of/mine", num_hosts=2).warnings == ()


HELD = ("/", "/opt", "/opt/ml", "/opt/ml/x/..", "relative/path", "/a\0b", "/proc", "//proc/self", "/dev", "/var/run/x")


@pytest.mark.parametrize("local_path", HELD)
def test_a_path_that_would_hide_the_programs_world_is_refused(tmp_path: Path, local_path: str) -> None:
    with pytest.raises(AgentError, match=r"LocalPath .* cannot be used") as caught:
        checkpoints_in(tmp_path, checkpoint_local_path=local_path)
    assert caught.value.fault is Fault.USER


def test_the_host_with_the_lowest_number_writes_the_plain_paths(tmp_path: Path) -> None:
    writers = [checkpoints_in(tmp_path, host=f"algo-{n}", num_hosts=11)._writer for n in (1, 2, 10)]
    assert [writer.is_first for writer in writers] == [True, False, False]
    assert writers[1].others == tuple(f"algo-{n}" for n in range(1, 12) if n != 2)


def test_one_line_reports_the_restore(tmp_path: Path) -> None:
    store = FakeCheckpointStore()
    found = checkpoints_in(tmp_path)
    found.restore(store)
    assert found.summary == "no checkpoints below s3://bucket/ckpt: the program begins without"
    assert found.facts.restored_files == 0
    store.objects |= {"ckpt/a": b"x" * 1_250_000, "ckpt/b": b"y"}
    found.restore(store)
    assert found.summary.startswith("restored 2 files, 1.3 MB, in 0.")
    assert found.summary.endswith(" s from s3://bucket/ckpt")
    assert (found.facts.restored_files, found.facts.restored_bytes, found.facts.restored_set) == (2, 1_250_001, 0)


def test_nothing_is_mirrored_before_the_start(tmp_path: Path) -> None:
    found = checkpoints_in(tmp_path)
    assert not found.is_mirroring
    found.abort()
    found.shorten(1.0)
    found.close()


def test_empty_parts_of_a_prefix_are_removed_with_a_warning(tmp_path: Path) -> None:
    found = checkpoints_in(tmp_path, checkpoint_s3_uri="s3://bucket//out//ckpt/")
    assert str(found.prefix.uri) == "s3://bucket/out/ckpt/"
    assert found.warnings == (
        "checkpoints: S3Uri s3://bucket//out//ckpt/ has empty parts and is taken as s3://bucket/out/ckpt/",
    )
    assert checkpoints_in(tmp_path).warnings == ()
