"""Archives of a host's trees: gzip by several threads, deterministic tar, links that must not leak other files."""

from __future__ import annotations

import io
import os
import random
import socket
import tarfile
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clary.agent.archives import (
    ArchiveLimits,
    GzipWriter,
    Member,
    MemberKind,
    TarWriter,
    TreeSource,
    extract_tar,
    has_members,
    read_members,
    walk_tree,
    write_tree,
)
from clary.agent.archives.links import resolve_link
from clary.agent.notes import NoteBook
from clary.base.errors import AgentError, Fault

MIB = 1 << 20


def packed(data: bytes, num_threads: int, piece: int = 300_000) -> bytes:
    sink = io.BytesIO()
    writer = GzipWriter(sink, num_threads=num_threads)
    for start in range(0, len(data), piece):
        writer.write(data[start : start + piece])
    writer.close()
    return sink.getvalue()


@pytest.mark.parametrize(
    "data",
    [b"", b"x", random.Random(1).randbytes(3 * MIB + 17), b"text " * MIB, bytes(2 * MIB), bytes(MIB) + b"y"],
    ids=["empty", "byte", "noise", "text", "zeros", "edge"],
)
def test_gzip_of_several_threads_is_one_ordinary_member(data):
    result = packed(data, num_threads=3)
    inflater = zlib.decompressobj(31)
    assert inflater.decompress(result) == data
    assert inflater.eof
    assert inflater.unused_data == b""


def test_gzip_output_does_not_depend_on_threads_or_pieces():
    data = random.Random(2).randbytes(MIB) + b"abc" * MIB
    assert packed(data, 1) == packed(data, 4, piece=1234)


def test_random_bytes_are_stored_and_text_is_not():
    noise = random.Random(3).randbytes(MIB)
    assert len(packed(noise, 1)) < MIB + 1000
    assert len(packed(b"epoch 1 loss 0.5\n" * 60_000, 1)) < 20_000


def test_error_of_the_sink_ends_the_writing():
    class FullSink:
        def write(self, data: bytes, /) -> None:
            if len(data) > 100:
                raise OSError(28, "No space left on device")

    writer = GzipWriter(FullSink(), num_threads=2)
    with pytest.raises(OSError, match="No space"):
        writer.write(random.Random(4).randbytes(20 * MIB))
    writer.abort()


def archive_of(root: Path, *, compress: bool = False, follow_links: bool = False, home: Path | None = None, **extra):
    sink = io.BytesIO()
    source = TreeSource(root=root, home=home, **extra)
    facts = write_tree(sink, [source], compress=compress, follow_links=follow_links)
    return sink.getvalue(), facts


def listing(data: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {info.name: info for info in tar.getmembers()}


def content(data: bytes, name: str) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        file = tar.extractfile(name)
        assert file is not None
        return file.read()


@pytest.fixture
def ml(tmp_path):
    """Return a job's /opt/ml, with a secret file of the machine next to it."""
    (tmp_path / "secret").write_text("secret of the machine")
    home = tmp_path / "ml"
    for folder in ("model/sub", "checkpoints/7", "output/data"):
        (home / folder).mkdir(parents=True)
    (home / "model/weights.bin").write_bytes(b"w" * 1000)
    (home / "checkpoints/7/state").write_bytes(b"state")
    return home


@pytest.mark.parametrize("compress", [False, True])
def test_the_same_tree_gives_the_same_bytes(ml, compress):
    first, facts = archive_of(ml / "model", compress=compress)
    os.utime(ml / "model", (1, 1))
    again, _ = archive_of(ml / "model", compress=compress)
    assert first == again
    assert facts.num_files == 1
    assert facts.size_bytes == 1000
    assert list(listing(first)) == ["sub", "weights.bin"]
    assert all(info.uid == 0 and info.uname == "" for info in listing(first).values())


def test_streaming_readers_of_the_standard_library_read_the_archive(ml):
    data, _ = archive_of(ml / "model", compress=True)
    with tarfile.open(fileobj=io.BytesIO(data), mode="r|gz") as tar:
        assert [info.name for info in tar] == ["sub", "weights.bin"]


def test_our_reader_reads_what_our_writer_wrote(ml, tmp_path):
    (ml / "model/sub" / ("n" * 200)).write_text("long")
    (ml / "model/unié").write_text("u")
    (ml / "model" / os.fsdecode(b"raw\xff")).write_text("r")
    (ml / "model/link").symlink_to("sub/" + "n" * 200)
    data, facts = archive_of(ml / "model", compress=True)
    extract_tar(io.BytesIO(data), tmp_path / "out")
    assert sorted(os.listdir(tmp_path / "out")) == sorted(os.listdir(ml / "model"))
    assert (tmp_path / "out/link").read_text() == "long"
    assert (tmp_path / "out" / os.fsdecode(b"raw\xff")).read_text() == "r"
    assert facts.num_files == 4


def test_prefix_puts_a_tree_into_a_folder_of_the_archive(ml):
    data, _ = archive_of(ml / "model", arc_prefix="a/b")
    assert set(listing(data)) == {"a/b/sub", "a/b/weights.bin"}


def test_a_source_that_does_not_exist_is_an_empty_archive(tmp_path):
    data, facts = archive_of(tmp_path / "nothing")
    assert facts.num_files == 0
    assert listing(data) == {}


def test_a_file_as_source_comes_under_its_own_name(ml):
    (ml / "output/failure").write_text("why")
    data, _ = archive_of(ml / "output/failure", home=ml)
    assert content(data, "failure") == b"why"


def test_link_inside_the_source_stays_a_link_and_absolute_ones_become_relative(ml):
    (ml / "model/latest").symlink_to("weights.bin")
    (ml / "model/sub/abs").symlink_to("/opt/ml/model/weights.bin")
    (ml / "model/sub/around").symlink_to("../../model/weights.bin")
    members = listing(archive_of(ml / "model", home=ml)[0])
    assert members["latest"].linkname == "weights.bin"
    assert members["sub/abs"].linkname == "../weights.bin"
    assert members["sub/around"].linkname == "../weights.bin"


def test_link_to_elsewhere_in_opt_ml_is_replaced_by_its_target(ml):
    (ml / "model/best").symlink_to("/opt/ml/checkpoints/7")
    (ml / "model/state").symlink_to("../checkpoints/7/state")
    data, facts = archive_of(ml / "model", home=ml)
    assert content(data, "best/state") == b"state"
    assert content(data, "state") == b"state"
    assert listing(data)["best"].isdir()
    assert facts.notes == ()


@pytest.mark.parametrize("target", ["/etc/hostname", "../../secret", "../../../../../../etc/hostname", "nowhere"])
def test_link_to_outside_is_kept_as_it_is_and_never_read(ml, target):
    (ml / "model/leak").symlink_to(target)
    data, facts = archive_of(ml / "model", home=ml)
    assert listing(data)["leak"].issym()
    assert listing(data)["leak"].linkname == target
    assert b"secret of the machine" not in data
    assert "leak" in facts.notes[0]
    data, facts = archive_of(ml / "model", home=ml, follow_links=True)
    assert "leak" not in listing(data)
    assert "leak" in facts.notes[0]


def test_link_to_outside_through_another_link_is_not_read(ml):
    (ml / "checkpoints/door").symlink_to("../..")
    (ml / "model/leak").symlink_to("../checkpoints/door/secret")
    data, facts = archive_of(ml / "model", home=ml)
    assert b"secret of the machine" not in data
    assert "leak" in facts.notes[0]


def test_links_that_form_a_cycle_do_not_loop_forever(ml):
    (ml / "model/up").symlink_to("..")
    (ml / "model/round").symlink_to("round")
    data, facts = archive_of(ml / "model", home=ml, follow_links=True)
    assert content(data, "weights.bin") == b"w" * 1000
    assert any("up ->" in note for note in facts.notes)


def test_following_links_gives_copies_of_inside_links_too(ml):
    (ml / "model/latest").symlink_to("weights.bin")
    data, _ = archive_of(ml / "model", home=ml, follow_links=True)
    assert content(data, "latest") == b"w" * 1000


def test_model_folder_that_is_a_link_within_opt_ml_is_followed(ml):
    (ml / "linked").symlink_to("/opt/ml/checkpoints/7")
    assert content(archive_of(ml / "linked", home=ml)[0], "state") == b"state"


def test_model_folder_that_is_a_link_to_outside_is_an_error_of_the_user(ml):
    (ml / "linked").symlink_to("/tmp")
    with pytest.raises(AgentError, match="outside /opt/ml") as caught:
        archive_of(ml / "linked", home=ml)
    assert caught.value.fault is Fault.USER


def test_parent_folder_that_is_a_link_is_not_followed(ml, tmp_path):
    elsewhere = tmp_path / "elsewhere/data"
    elsewhere.mkdir(parents=True)
    (elsewhere / "secret").write_text("secret of the machine")
    os.rename(ml / "output", ml / "old")
    (ml / "output").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(AgentError, match="cannot be read"):
        archive_of(ml / "output/data", home=ml)


def test_a_parent_that_is_a_link_does_not_reveal_its_target(ml, tmp_path):
    os.rename(ml / "output", ml / "old")
    (ml / "output").symlink_to(tmp_path)  # the target has no folder `data`
    with pytest.raises(AgentError, match="cannot be read"):
        archive_of(ml / "output/data", home=ml)


def test_a_link_through_a_folder_that_was_replaced_meanwhile_leads_nowhere(ml, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "secret").write_text("secret of the machine")
    (tmp_path / "elsewhere" / "link").symlink_to("/opt/ml/checkpoints/7/state")
    (ml / "swapped").symlink_to(tmp_path / "elsewhere")
    assert resolve_link(ml, ("checkpoints", "7"), "state") == ("checkpoints", "7", "state")
    for target in ("secret", "link", "/opt/ml/swapped/secret"):
        assert resolve_link(ml, ("swapped",), target) is None


def test_sockets_and_pipes_are_left_out_with_a_note(ml, monkeypatch):
    os.mkfifo(ml / "model/pipe")
    monkeypatch.chdir(ml / "model")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("sock")
        data, facts = archive_of(ml / "model")
    assert set(listing(data)) == {"sub", "weights.bin"}
    assert facts.notes == ("left out, no regular file (a socket, named pipe or device): pipe, sock",)


class ChangingSink(io.BytesIO):
    """Changes the size of a file while it is archived."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        super().__init__()
        self._path, self._size_bytes = path, size_bytes

    def write(self, data: bytes, /) -> int:
        if data.startswith(b"weights.bin"):  # the header of the file, which was opened just before
            os.truncate(self._path, self._size_bytes)
        return super().write(data)


def test_file_that_grows_is_cut_at_its_first_size_with_a_note(ml):
    path = ml / "model/weights.bin"
    sink = ChangingSink(path, 5000)
    facts = write_tree(sink, [TreeSource(root=ml / "model")], compress=False)
    assert content(sink.getvalue(), "weights.bin") == b"w" * 1000
    assert "growing: weights.bin" in facts.notes[0]


def test_file_that_shrinks_is_an_error_naming_it(ml):
    path = ml / "model/weights.bin"
    with pytest.raises(AgentError, match=r"weights\.bin.*changed.*1000.*got 10"):
        write_tree(ChangingSink(path, 10), [TreeSource(root=ml / "model")], compress=False)


def test_deep_nesting_is_refused_by_name_and_not_by_a_crash(tmp_path):

    (tmp_path / "m").mkdir()
    folder = os.open(tmp_path / "m", os.O_RDONLY)
    try:
        for _ in range(230):
            os.mkdir("d", dir_fd=folder)
            below = os.open("d", os.O_RDONLY, dir_fd=folder)
            os.close(folder)
            folder = below
    finally:
        os.close(folder)
    with pytest.raises(AgentError, match="folders deep"):
        archive_of(tmp_path / "m")


@pytest.fixture
def mounts(ml, tmp_path):
    """Return the folder that the program saw at /opt/ml/input/data/train; on this machine it lies outside /opt/ml."""
    channel = tmp_path / "snapshot"
    (channel / "sub").mkdir(parents=True)
    (channel / "words").write_bytes(b"words")
    (channel / "sub/more").write_bytes(b"more")
    (ml / "input/data/train").mkdir(parents=True)
    return {("input", "data", "train"): channel}


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("/opt/ml/input/data/train/words", {"link": b"words"}),
        ("../input/data/train/sub/../words", {"link": b"words"}),
        ("../input/data/train", {"link/words": b"words", "link/sub/more": b"more"}),
        ("../input", {"link/data/train/words": b"words", "link/data/train/sub/more": b"more"}),
        ("/opt/ml/input/data/train/../../../../secret", {}),
        ("/opt/ml/input/data/train/../secret", {}),
        ("/opt/ml/input/data/train/missing", {}),
    ],
)
@pytest.mark.parametrize("in_its_place", ["folder", "link"])
def test_links_lead_to_the_programs_mounts_and_not_to_folders_in_their_place(
    ml, mounts, tmp_path, target, expected, in_its_place
):
    if in_its_place == "link":
        (ml / "input/data/train").rmdir()
        (ml / "input/data/train").symlink_to(tmp_path)
        if target == "../input":
            expected = {}  # the parent folder holds a link that leads out
    (ml / "model/link").symlink_to(target)
    data, _ = archive_of(ml / "model", home=ml, follow_links=True, mounts=mounts)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        found = {info.name: tar.extractfile(info).read() for info in tar.getmembers() if info.isfile()}
    assert {name: content for name, content in found.items() if name.startswith("link")} == expected


def test_a_model_folder_that_links_to_a_channel_is_archived_with_its_files(ml, mounts):
    (ml / "model").rename(ml / "former")
    (ml / "model").symlink_to("/opt/ml/input/data/train")
    data, _ = archive_of(ml / "model", home=ml, mounts=mounts)
    assert set(listing(data)) == {"words", "sub", "sub/more"}


def test_has_members_is_false_only_for_empty_trees(ml):
    assert has_members([TreeSource(root=ml / "model", home=ml)])
    assert not has_members([TreeSource(root=ml / "output/data", home=ml)])
    assert not has_members([TreeSource(root=ml / "missing", home=ml)])


def test_walk_closes_its_files_when_the_caller_stops_early(ml):
    num_open = len(os.listdir("/proc/self/fd"))
    walk = walk_tree([TreeSource(root=ml / "model")], notes=NoteBook())
    for member in walk:
        if member.kind is MemberKind.FILE:
            break
    walk.close()
    assert len(os.listdir("/proc/self/fd")) == num_open


parts = st.text(st.characters(blacklist_characters="/\0", blacklist_categories=["Cs"]), min_size=1, max_size=60).filter(
    lambda text: text not in (".", "..") and len(text.encode()) <= 255
)


@settings(max_examples=100)
@given(tree=st.dictionaries(st.lists(parts, min_size=1, max_size=4).map(tuple), st.binary(max_size=2000), max_size=8))
def test_any_members_survive_writing_and_reading(tree):
    sink = io.BytesIO()
    writer = TarWriter(sink)
    for path, data in tree.items():
        writer.add(Member(path=path, kind=MemberKind.FILE, size_bytes=len(data), mtime_s=7, content=io.BytesIO(data)))
    writer.close()
    members = read_members(io.BytesIO(sink.getvalue()), limits=ArchiveLimits(), label="a")
    got = {}
    for member in members:
        pieces = []
        while data := member.content.read(999):
            pieces.append(data)
        got[member.path] = b"".join(pieces)
    assert got == tree
