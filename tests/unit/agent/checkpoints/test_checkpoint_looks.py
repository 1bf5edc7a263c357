"""Snapshots of the checkpoint folder, and the groups of files that belong together."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clary.agent.checkpoints.folder import CheckpointFolder
from clary.agent.checkpoints.grouping import (
    TOP,
    GroupVersion,
    group_of,
    without_collisions,
)
from clary.agent.checkpoints.places import TakenNames, inner_target, path_problem
from clary.agent.checkpoints.scanning import Snapshot, scan
from clary.contract.checkpoint_sets import CheckpointFile


def test_everything_that_is_kept_is_seen(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "empty/below").mkdir(parents=True)
    (tmp_path / "a/b/c").write_text("123")
    (tmp_path / "top").write_text("1")
    (tmp_path / "latest").symlink_to("a")
    found = scan(CheckpointFolder(tmp_path))
    assert sorted(found.files) == ["a/b/c", "top"]
    assert found.files["a/b/c"].size_bytes == 3
    assert found.folders == {"empty/below"}
    assert found.links == {"latest": "a"}
    assert found.left_out == {}


def test_special_files_and_links_that_lead_out_are_named_and_left_out(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / ".clary-checkpoints").mkdir()
    (tmp_path / ".clary-checkpoints/x").write_text("hidden")
    (tmp_path / "out").symlink_to("/etc/passwd")
    (tmp_path / "up").symlink_to("../elsewhere")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/bad-\xff")).write_text("x")
    with socket.socket(socket.AF_UNIX) as server:
        here = os.getcwd()
        os.chdir(tmp_path)
        try:
            server.bind("socket")
        finally:
            os.chdir(here)
        found = scan(CheckpointFolder(tmp_path))
    assert found.files == {}
    assert found.links == {}
    assert sorted(path for paths in found.left_out.values() for path in paths) == sorted(
        ["pipe", "socket", ".clary-checkpoints", "out", "up", "bad-\udcff"]
    )


def test_a_link_in_the_place_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/key").write_text("x")
    (tmp_path / "home").mkdir()
    (tmp_path / "home/checkpoints").symlink_to(tmp_path / "secret")
    folder = CheckpointFolder(tmp_path / "home", ["checkpoints"])
    with pytest.raises(OSError, match="checkpoints"):
        scan(folder)
    with pytest.raises(OSError, match="checkpoints"):
        folder.open_file("key")


def test_a_folder_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    assert scan(CheckpointFolder(tmp_path / "none")) == Snapshot()
    assert scan(CheckpointFolder(tmp_path, ["none", "below"])) == Snapshot()


@pytest.mark.parametrize(
    ("path", "target", "kept"),
    [
        ("a", "b/c", "b/c"),
        ("x/a", "../b", "../b"),
        ("x/a", "../../b", None),
        ("a", "/opt/ml/checkpoints/b", "b"),
        ("x/a", "/opt/ml/checkpoints/b/./c", "../b/c"),
        ("a", "/opt/ml/checkpoints-2/b", None),
        ("a", "/opt/ml", None),
        ("a", "b/../../c", None),
        ("a", "b/../c", "c"),
        ("a", ".", "."),
        ("a", "\udcff", None),
    ],
)
def test_links_are_kept_as_long_as_they_stay_inside(path: str, target: str, kept: str | None) -> None:
    assert inner_target(path, target, root="/opt/ml/checkpoints") == kept


@given(st.lists(st.sampled_from(["..", ".", "a", "b", "", "c d"]), max_size=8).map("/".join), st.integers(0, 3))
def test_no_kept_link_leads_out_whatever_its_text(target: str, depth: int) -> None:
    path = "/".join(["d"] * depth + ["link"])
    kept = inner_target(path, target, root="/r")
    if kept is not None:
        parts = kept.split("/")
        num_up = len([part for part in parts if part == ".."])
        assert parts[:num_up] == [".."] * num_up
        assert num_up <= depth
        assert inner_target(path, kept, root="/") == kept


@given(st.text(max_size=30))
def test_a_path_without_a_problem_stays_below_its_folder(path: str) -> None:
    if path_problem(path) is None:
        assert os.path.normpath(path) == path
        assert not path.startswith(("/", ".."))


def test_a_file_and_a_folder_of_one_name_never_meet_in_a_set() -> None:
    file = CheckpointFile(path="a", size_bytes=1, sha256="", key="a")
    below = CheckpointFile(path="a/b", size_bytes=1, sha256="", key="a/b")
    old = {TOP: GroupVersion(files={"a": file})}
    new = {"a": GroupVersion(files={"a/b": below}), "other": GroupVersion(folders=frozenset({"other"}))}
    merged, held_back = without_collisions(old, new)
    assert held_back == {"a"}
    assert merged == {**old, "other": new["other"]}
    merged, held_back = without_collisions(old, {**new, TOP: GroupVersion()})
    assert held_back == set()
    assert merged["a"] == new["a"]


@given(
    st.lists(st.sampled_from(["a", "a/b", "a/b/c", "ab", "b", "b/c"]), max_size=6),
    st.sampled_from(["a", "a/b", "a/b/c", "ab", "b"]),
)
def test_a_free_name_differs_from_all_other_names(paths: list[str], path: str) -> None:
    names = TakenNames(paths)
    touches = any(one == path or one.startswith(f"{path}/") or path.startswith(f"{one}/") for one in paths)
    assert names.is_free(path) == (not touches)


def test_groups_are_top_level_folders() -> None:
    assert [group_of("a"), group_of("a/b/c"), group_of("a", is_folder=True)] == ["", "a", "a"]
