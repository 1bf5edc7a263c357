"""Removal of the folders and cgroups that programs leave."""

import os

from clary.agent.host.leftovers import remove_cgroups, remove_tree


def test_trees_with_closed_folders_and_links_are_removed(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("x")
    tree = tmp_path / "tree"
    (tree / "a" / "b" / "c").mkdir(parents=True)
    (tree / "a" / "b" / "c" / "file").write_text("x")
    (tree / "a" / "link").symlink_to(outside)
    (tree / "dangling").symlink_to("/no/such/file")
    (tree / ".removed-0").mkdir()
    (tree / ".removed-1").write_text("a name that the removal itself uses")
    os.mkfifo(tree / "a" / "pipe")
    for folder in (tree / "a" / "b" / "c", tree / "a" / "b", tree / "a"):
        folder.chmod(0)
    remove_tree(str(tree))
    assert not tree.exists()
    assert (outside / "kept").exists()


def test_trees_deeper_than_paths_can_be_are_removed(tmp_path):
    tree = tmp_path / "tree"
    tree.mkdir()
    before = os.open(".", os.O_RDONLY)
    os.chdir(tree)
    try:
        for _ in range(3000):
            os.mkdir("deep")
            os.chdir("deep")
    finally:
        os.chdir(before)
        os.close(before)
    remove_tree(str(tree))
    assert not tree.exists()


def test_wide_trees_are_removed(tmp_path):
    for number in range(300):
        (tmp_path / "tree" / f"d{number % 7}" / f"e{number}").mkdir(parents=True)
    remove_tree(str(tmp_path / "tree"))
    assert os.listdir(tmp_path) == []


def test_missing_tree_is_no_error(tmp_path):
    remove_tree(str(tmp_path / "no"))
    assert os.listdir(tmp_path) == []


def test_cgroups_are_left_and_removed_with_their_family(tmp_path):
    home = tmp_path / "cgroup.procs"
    home.write_text("")
    folder = tmp_path / "clary" / "job"
    folder.mkdir(parents=True)
    remove_cgroups([str(folder)], home_files=[str(home), str(tmp_path / "no" / "file")])
    assert home.read_text() == "0"
    assert sorted(os.listdir(tmp_path)) == ["cgroup.procs"]
