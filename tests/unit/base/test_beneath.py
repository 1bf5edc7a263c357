"""Paths below a folder are opened as they are, or refused: an entry that replaces a path never leads elsewhere."""

import errno
import os
import socket
import threading
from pathlib import Path

import pytest

from clary.base import beneath
from clary.base.beneath import Folder
from clary.base.beneath_trees import copy_tree, entries, remove_tree

VICTIM = b"of the machine\n"


@pytest.fixture(params=["openat2", "walk"])
def way(request, monkeypatch):
    """Use both implementations: with and without openat2."""
    has_it = request.param == "openat2"
    if has_it and not beneath._has_openat2():
        pytest.skip("this kernel has no openat2")
    monkeypatch.setattr(beneath, "_has_openat2", lambda: has_it)


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """Make a folder of the machine with a file, outside the program's folder."""
    folder = tmp_path / "machine"
    folder.mkdir()
    (folder / "file").write_bytes(VICTIM)
    (folder / "file").chmod(0o600)
    return folder


@pytest.fixture
def owned(tmp_path: Path):
    """Open the program's folder."""
    (tmp_path / "owned" / "sub").mkdir(parents=True)
    (tmp_path / "owned" / "file").write_bytes(b"own")
    with Folder.at(tmp_path / "owned") as folder:
        yield folder


def put(kind: str, place: Path, victim: Path) -> None:
    """Replace an entry by another kind of entry, as a program may do."""
    if place.is_dir() and not place.is_symlink():
        place.rename(place.with_name(f"{place.name}-moved"))
    else:
        place.unlink(missing_ok=True)
    match kind:
        case "link":
            place.symlink_to(victim / "file")
        case "folder-link":
            place.symlink_to(victim)
        case "magic-link":
            place.symlink_to(f"/proc/{os.getpid()}/cwd")
        case "dangling":
            place.symlink_to("nowhere")
        case "hard-link":
            os.link(victim / "file", place)
        case "pipe":
            os.mkfifo(place)
        case "socket":
            with socket.socket(socket.AF_UNIX) as end:
                end.bind(str(place))
        case "folder":
            (place / "inner").mkdir(parents=True)


def outcome(act) -> str:
    """Return the name of the error that `act` raises, or "done"; fail if `act` hangs."""
    said: list[str] = []

    def run() -> None:
        try:
            act()
        except OSError as error:
            said.append(errno.errorcode[error.errno or 0])
        else:
            said.append("done")

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(5)
    assert said, "it hangs"
    return said[0]


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        ("link", "ELOOP"),
        ("folder-link", "ELOOP"),
        ("magic-link", "ELOOP"),
        ("dangling", "ELOOP"),
        ("pipe", "EPERM"),
        ("socket", "EPERM"),
        ("folder", "EISDIR"),
    ],
)
def test_reading_refuses_whatever_is_no_file_and_does_not_wait(kind, answer, owned, victim, tmp_path):
    put(kind, tmp_path / "owned" / "file", victim)
    assert outcome(lambda: owned.read("file", max_bytes=100)) == answer
    assert outcome(lambda: os.close(owned.open_file("file", os.O_RDWR))) == answer


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(
    "act",
    [
        lambda folder: folder.read("sub/file", max_bytes=9),
        lambda folder: folder.write("sub/file", b"x"),
        lambda folder: folder.names("sub"),
        lambda folder: folder.remove("sub/file"),
        lambda folder: folder.rename("sub/file", "file"),
        lambda folder: folder.rename("file", "sub/file"),
        lambda folder: folder.make_fifo("sub/new", mode=0o644),
        lambda folder: folder.make_link("sub/new", "file"),
        lambda folder: folder.set_mode("sub/file", 0o777),
        lambda folder: folder.status("sub/file"),
        lambda folder: folder.folder("sub/new", create=True),
        lambda folder: next(entries(folder, "sub")),
    ],
)
def test_no_operation_follows_a_folder_that_became_a_link(act, owned, victim, tmp_path):
    put("folder-link", tmp_path / "owned" / "sub", victim)
    assert outcome(lambda: act(owned)) == "ELOOP"
    assert [path.name for path in victim.iterdir()] == ["file"]
    assert (victim / "file").read_bytes() == VICTIM
    assert (victim / "file").stat().st_mode & 0o777 == 0o600


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("kind", ["link", "hard-link", "dangling", "pipe", "socket"])
def test_writing_replaces_the_entry_and_leaves_its_target_unchanged(kind, owned, victim, tmp_path):
    put(kind, tmp_path / "owned" / "file", victim)
    owned.write("file", b"new", mode=0o640)
    assert (tmp_path / "owned" / "file").read_bytes() == b"new"
    assert not (tmp_path / "owned" / "file").is_symlink()
    assert (tmp_path / "owned" / "file").stat().st_mode & 0o777 == 0o640
    assert (victim / "file").read_bytes() == VICTIM
    assert (victim / "file").stat().st_mode & 0o777 == 0o600
    assert sorted(owned.names()) == ["file", "sub"]  # no temporary file is left


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("path", ["/etc/passwd", "../machine/file", "sub/../../machine/file", "..", "a\0b"])
def test_paths_that_lead_up_are_refused_by_every_operation(path, owned, victim):
    assert outcome(lambda: owned.read(path, max_bytes=1)) == "EINVAL"
    assert outcome(lambda: owned.write(path, b"")) == "EINVAL"


@pytest.mark.usefixtures("way")
def test_files_and_folders_are_read_listed_and_made(owned, tmp_path):
    owned.folder("a/b", create=True).close()
    owned.write("a/b/c", bytes(10))
    assert owned.read("a/b/c", max_bytes=4) == bytes(4)
    assert owned.status("a/b/c").st_size == 10
    assert sorted(entry.path for entry in entries(owned)) == ["a", "a/b", "a/b/c", "file", "sub"]
    assert len(list(entries(owned, max_entries=2))) == 2
    assert sorted(entry.path for entry in entries(owned, "a", max_depth=0)) == ["a/b"]
    assert owned.names(limit=1)
    owned.rename("a/b/c", "sub/c")
    owned.set_mode("sub/c", 0o755)
    assert (tmp_path / "owned/sub/c").stat().st_mode & 0o777 == 0o755
    owned.remove("sub/c")
    assert not owned.exists("sub/c")
    assert outcome(lambda: owned.read("sub/c", max_bytes=1)) == "ENOENT"
    assert outcome(lambda: owned.read("file/c", max_bytes=1)) == "ENOTDIR"


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(("kind", "answer"), [("link", "ELOOP"), ("hard-link", "EPERM"), ("socket", "EPERM")])
def test_a_named_pipe_is_opened_only_where_it_is_one(kind, answer, owned, victim, tmp_path):
    owned.make_fifo("pipe", mode=0o644)
    assert outcome(lambda: owned.open_fifo("pipe", os.O_WRONLY)) == "ENXIO"
    reader = owned.open_fifo("pipe", os.O_RDONLY)
    writer = owned.open_fifo("pipe", os.O_WRONLY)
    os.write(writer, b"x")
    assert os.read(reader, 1) == b"x"
    os.close(reader)
    os.close(writer)
    put(kind, tmp_path / "owned" / "pipe", victim)
    assert outcome(lambda: owned.open_fifo("pipe", os.O_WRONLY)) == answer


@pytest.mark.usefixtures("way")
def test_a_file_that_is_swapped_all_the_time_is_never_another_one(owned, victim, tmp_path):
    place, done = tmp_path / "owned" / "swapped", threading.Event()

    def swap() -> None:
        number = 0
        while not done.is_set():
            number += 1
            new = tmp_path / "owned" / f"new-{number}"
            if number % 2:
                new.symlink_to(victim / "file")
            else:
                new.write_bytes(b"own")
            new.rename(place)

    thread = threading.Thread(target=swap, daemon=True)
    thread.start()
    found = set()
    try:
        for _ in range(3000):
            try:
                found.add(owned.read("swapped", max_bytes=100))
                owned.set_mode("swapped", 0o666)
                owned.write("swapped", b"own")
            except OSError as error:
                found.add(errno.errorcode[error.errno or 0])
    finally:
        done.set()
        thread.join()
    assert VICTIM not in found
    assert {b"own", "ELOOP"} <= found
    assert (victim / "file").read_bytes() == VICTIM
    assert (victim / "file").stat().st_mode & 0o777 == 0o600


@pytest.mark.usefixtures("way")
def test_a_tree_is_removed_without_the_targets_of_its_links(owned, victim, tmp_path):
    tree = tmp_path / "owned" / "tree"
    for kind in ("link", "folder-link", "hard-link", "pipe", "socket", "folder"):
        tree.mkdir(exist_ok=True)
        put(kind, tree / kind, victim)
    (tree / "folder").chmod(0)
    assert remove_tree(owned, "tree")
    put("folder-link", tree, victim)
    assert remove_tree(owned, "tree")
    assert remove_tree(owned, "never there")
    assert (victim / "file").read_bytes() == VICTIM
    assert (victim / "file").stat().st_mode & 0o777 == 0o600


@pytest.mark.usefixtures("way")
def test_a_tree_deeper_than_paths_may_be_long_is_removed(owned):
    here = owned.folder("deep", create=True)
    for _ in range(3000):
        below = here.folder("folder", create=True)
        here.close()
        here = below
    here.close()
    assert sum(1 for _ in entries(owned, "deep", max_entries=100)) == 100
    assert remove_tree(owned, "deep")


@pytest.mark.usefixtures("way")
def test_a_copied_tree_holds_links_as_text_and_follows_none(owned, victim, tmp_path):
    for kind in ("link", "folder-link", "pipe"):
        put(kind, tmp_path / "owned" / kind, victim)
    os.chmod(tmp_path / "owned" / "file", 0o750)
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "file").symlink_to(victim / "file")
    with Folder.at(tmp_path / "copy") as copy:
        assert copy_tree(owned, copy) == ["pipe"]
    assert (tmp_path / "copy" / "file").read_bytes() == b"own"
    assert (tmp_path / "copy" / "file").lstat().st_mode & 0o777 == 0o750
    assert (tmp_path / "copy" / "link").readlink() == victim / "file"
    assert (tmp_path / "copy" / "folder-link").is_symlink()
    assert (victim / "file").read_bytes() == VICTIM


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("kind", ["link", "folder-link", "hard-link", "pipe", "socket"])
def test_copying_a_tree_fails_at_an_entry_in_place_of_a_folder(kind, owned, victim, tmp_path):
    (tmp_path / "owned" / "place").mkdir()
    (tmp_path / "owned" / "place" / "new").write_bytes(b"new")
    (tmp_path / "copy").mkdir()
    put(kind, tmp_path / "copy" / "place", victim)
    with Folder.at(tmp_path / "copy") as copy, pytest.raises(OSError):
        copy_tree(owned, copy)
    assert not (tmp_path / "copy" / "place" / "new").exists()
    assert {path.name for path in victim.iterdir()} == {"file"}


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("kind", ["file", "link"])
def test_copying_a_tree_fails_at_a_folder_in_place_of_a_file_or_link(kind, owned, victim, tmp_path):
    if kind == "link":
        put(kind, tmp_path / "owned" / "place", victim)
    else:
        (tmp_path / "owned" / "place").write_bytes(b"new")
    (tmp_path / "copy" / "place").mkdir(parents=True)
    (tmp_path / "copy" / "place" / "own").write_bytes(b"own")
    with Folder.at(tmp_path / "copy") as copy, pytest.raises(OSError):
        copy_tree(owned, copy)
    assert (tmp_path / "copy" / "place" / "own").read_bytes() == b"own"
