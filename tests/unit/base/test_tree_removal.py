"""Removal of trees that programs left: `base.tree_removal`, and its short form in `agent.boot`."""

import os
import subprocess
import sys

import pytest
from hard_trees import grow_hard_to_remove, plain_user_folder

from clary.agent import boot
from clary.base.tree_removal import remove_folder

REMOVALS = {"tree_removal": remove_folder, "boot": lambda path: boot._remove_folder(str(path))}
MOUNTED = """
import contextlib, ctypes, pathlib, sys
from clary.agent import boot
from clary.base.tree_removal import remove_folder
tree, data = sys.argv[2:]
libc = ctypes.CDLL(None, use_errno=True)
for place in ("mounted", "deep/mounted", "deep/er/mounted"):
    assert libc.mount(data.encode(), f"{tree}/{place}".encode(), None, 4096, None) == 0, ctypes.get_errno()
with contextlib.suppress(OSError):
    remove_folder(tree) if sys.argv[1] == "tree_removal" else boot._remove_folder(tree)
"""


@pytest.mark.parametrize("name", REMOVALS)
def test_a_deep_tree_with_closed_folders_is_removed_and_links_are_not_followed(name, tmp_path):
    (tmp_path / "file").touch()
    with plain_user_folder() as place:
        (place / "tree").mkdir()
        grow_hard_to_remove(place / "tree")
        (place / "tree/link").symlink_to(tmp_path)
        (place / "tree/readonly").chmod(0o700)
        (place / "tree/readonly/inner/link").symlink_to(tmp_path)
        REMOVALS[name](place / "tree")
        assert list(place.iterdir()) == []
    assert (tmp_path / "file").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="makes folders of another user")
@pytest.mark.parametrize("name", REMOVALS)
def test_empty_folders_of_another_user_are_removed(name):
    with plain_user_folder() as place:
        for path in ("tree/theirs", "tree/own/theirs", "tree/own/own/theirs"):
            (place / path).mkdir(parents=True)
            os.seteuid(0)
            os.chown(place / path, 1, 1)
            (place / path).chmod(0o700)
            os.seteuid(65534)
        REMOVALS[name](place / "tree")
        assert list(place.iterdir()) == []


@pytest.mark.parametrize("name", REMOVALS)
def test_what_is_mounted_below_a_tree_stays(name, tmp_path):
    tree, data = tmp_path / "tree", tmp_path / "data"
    for place in ("mounted", "deep/mounted", "deep/er/mounted"):
        (tree / place).mkdir(parents=True)
    (data / "inner").mkdir(parents=True)
    (data / "file").touch()
    (data / "inner/file").touch()
    own = ["unshare", "--mount", "--user", "--map-root-user"]
    if subprocess.run([*own, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this kernel allows no namespaces")
    subprocess.run([*own, sys.executable, "-c", MOUNTED, name, str(tree), str(data)], check=True, timeout=60)
    assert sorted(path.name for path in data.rglob("*")) == ["file", "file", "inner"]


def test_a_removal_that_is_not_complete_says_so(tmp_path, monkeypatch):
    def refuse(*arguments, **options):
        raise PermissionError

    assert remove_folder(tmp_path / "missing/folder")
    (tmp_path / "file").touch()
    assert remove_folder(tmp_path / "file")
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/file").touch()
    monkeypatch.setattr(os, "unlink", refuse)
    assert not remove_folder(tmp_path / "tree")
    assert (tmp_path / "tree/file").exists()
