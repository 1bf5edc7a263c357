"""Extraction of hostile, damaged and valid archives into a folder."""

from __future__ import annotations

import gzip
import io
import os
import random
import stat
import tarfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clary.agent.archives import ArchiveLimits, extract_tar
from clary.base.errors import AgentError, Fault


class ArchiveBuilder:
    """Builds archives with the standard library, including hostile members."""

    def __init__(self) -> None:
        self._buffer = io.BytesIO()
        self._tar = tarfile.TarFile(fileobj=self._buffer, mode="w")

    def file(self, name: str, data: bytes = b"data", mode: int = 0o644) -> ArchiveBuilder:
        info = tarfile.TarInfo(name)
        info.size, info.mode = len(data), mode
        self._tar.addfile(info, io.BytesIO(data))
        return self

    def entry(self, name: str, kind: bytes, target: str = "") -> ArchiveBuilder:
        info = tarfile.TarInfo(name)
        info.type, info.linkname, info.mode = kind, target, 0o755
        self._tar.addfile(info)
        return self

    def link(self, name: str, target: str) -> ArchiveBuilder:
        return self.entry(name, tarfile.SYMTYPE, target)

    def bytes(self) -> bytes:
        self._tar.close()
        return self._buffer.getvalue()


def unpack(data: bytes, folder: Path, **limits: float) -> object:
    return extract_tar(io.BytesIO(data), folder, limits=ArchiveLimits(**limits), label="s3://b/code.tar.gz")


def refusal(data: bytes, tmp_path: Path, **limits: float) -> str:
    """Extract into a folder next to a guard file; return the message of the refusal."""
    folder = tmp_path / "jail" / "code"
    (tmp_path / "jail").mkdir(exist_ok=True)
    with pytest.raises(AgentError) as caught:
        unpack(data, folder, **limits)
    assert caught.value.fault is Fault.USER
    assert os.listdir(tmp_path) == ["jail"]
    assert os.listdir(tmp_path / "jail") in (["code"], [])
    assert "s3://b/code.tar.gz" in caught.value.message
    return caught.value.message


@pytest.mark.parametrize("compress", [False, True])
def test_files_folders_links_and_modes_survive_an_archive(tmp_path, compress):
    data = (
        ArchiveBuilder()
        .entry("./", tarfile.DIRTYPE)
        .entry("./sub", tarfile.DIRTYPE)
        .file("./sub/run.sh", b"echo hi", 0o755)
        .file("train.py", b"x" * 70_000)
        .file("implied/below/" + "n" * 120 + "/" + "m" * 200, b"long names")
        .link("sub/latest", "../train.py")
        .entry("hard", tarfile.LNKTYPE, "sub/run.sh")
        .file("unié.txt", b"u")
        .bytes()
    )
    facts = unpack(gzip.compress(data, mtime=0) if compress else data, tmp_path)
    assert (tmp_path / "train.py").read_bytes() == b"x" * 70_000
    assert stat.S_IMODE((tmp_path / "sub/run.sh").stat().st_mode) == 0o755
    assert (tmp_path / "sub/latest").read_bytes() == b"x" * 70_000
    assert (tmp_path / "sub/latest").is_symlink()
    assert (tmp_path / "hard").read_bytes() == b"echo hi"
    assert (tmp_path / "implied/below" / ("n" * 120) / ("m" * 200)).read_bytes() == b"long names"
    assert (tmp_path / "unié.txt").read_bytes() == b"u"
    assert facts.num_files == 5
    assert facts.size_bytes == 70_000 + 7 + 10 + 1


def test_archives_of_gnu_and_ustar_format_are_read(tmp_path):
    for number, form in enumerate((tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT)):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
            info = tarfile.TarInfo("d" * 90 + "/" + "e" * 60)
            info.size = 3
            tar.addfile(info, io.BytesIO(b"abc"))
        unpack(buffer.getvalue(), tmp_path / str(number))
        assert (tmp_path / str(number) / ("d" * 90) / ("e" * 60)).read_bytes() == b"abc"


def test_setuid_and_setgid_bits_are_dropped_and_owner_is_ignored(tmp_path):
    unpack(ArchiveBuilder().file("suid", mode=0o6755).entry("d", tarfile.DIRTYPE).bytes(), tmp_path)
    assert stat.S_IMODE((tmp_path / "suid").stat().st_mode) == 0o755
    assert (tmp_path / "suid").stat().st_uid == os.geteuid()


def test_a_copy_for_a_person_obeys_the_umask_and_names_the_links_that_it_leaves_out(tmp_path):
    data = (
        ArchiveBuilder()
        .file("open", mode=0o777)
        .file("below/file", mode=0o666)
        .entry("folder", tarfile.DIRTYPE)
        .link("kept", "below/file")
        .link("passwd", "/etc/passwd")
        .link("below/up", "../..")
        .link("second", "passwd")
    )
    before = os.umask(0o027)
    try:
        facts = extract_tar(io.BytesIO(data.bytes()), tmp_path, is_for_person=True)
    finally:
        os.umask(before)
    modes = {name: stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("open", "below/file", "folder")}
    assert modes == {"open": 0o750, "below/file": 0o640, "folder": 0o750}
    assert os.readlink(tmp_path / "kept") == "below/file"
    assert facts.links_left_out == ("below/up -> ../..", "passwd -> /etc/passwd", "second -> passwd")
    assert not [name for name in ("passwd", "below/up", "second") if os.path.lexists(tmp_path / name)]


def test_files_without_any_permission_can_still_be_used_by_their_owner(tmp_path):
    unpack(ArchiveBuilder().file("locked", mode=0).bytes(), tmp_path)
    assert stat.S_IMODE((tmp_path / "locked").stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ["/etc/passwd", "../evil", "a/../../evil", "a/..", "..", "x/" + "y" * 256])
def test_names_that_lead_out_or_fit_nowhere_are_refused(tmp_path, name):
    message = refusal(ArchiveBuilder().file("fine").file(name).bytes(), tmp_path)
    assert ascii(name[:200])[:-1] in message


@pytest.mark.parametrize(
    ("kind", "word"),
    [(tarfile.CHRTYPE, "character device"), (tarfile.BLKTYPE, "block device"), (tarfile.FIFOTYPE, "named pipe")],
)
def test_devices_and_pipes_are_refused(tmp_path, kind, word):
    assert word in refusal(ArchiveBuilder().entry("thing", kind).bytes(), tmp_path)


@pytest.mark.parametrize("target", ["/etc", "..", "../code-2", "sub/../../x", "a/b/c/../../../../x", ""])
def test_symbolic_links_that_leave_the_folder_are_refused(tmp_path, target):
    refusal(ArchiveBuilder().entry("sub", tarfile.DIRTYPE).link("evil", target).bytes(), tmp_path)
    assert not os.path.lexists(tmp_path / "jail/code/evil")


def test_link_that_leaves_only_through_another_link_is_refused(tmp_path):
    # As text, a/up/../x stays inside; the kernel follows a/up to the root and then goes above it.
    data = ArchiveBuilder().entry("a", tarfile.DIRTYPE).link("a/up", "..").link("evil", "a/up/../x").bytes()
    assert "evil" in refusal(data, tmp_path)


def test_links_in_circles_are_refused(tmp_path):
    assert "40 links" in refusal(ArchiveBuilder().link("a", "b").link("b", "a").bytes(), tmp_path)


def test_links_that_stay_inside_through_other_links_are_kept(tmp_path):
    data = (
        ArchiveBuilder()
        .file("real/deep/file", b"content")
        .link("short", "real/deep")
        .link("real/back", "../short/file")
        .link("dangling", "not/there")
        .bytes()
    )
    unpack(data, tmp_path)
    assert (tmp_path / "real/back").read_bytes() == b"content"
    assert os.readlink(tmp_path / "dangling") == "not/there"


def test_file_through_a_symbolic_link_of_the_archive_is_refused(tmp_path):
    outside = tmp_path / "jail"
    outside.mkdir()
    for target in (str(tmp_path), "sub"):
        data = ArchiveBuilder().entry("sub", tarfile.DIRTYPE).link("door", target).file("door/evil").bytes()
        assert "door" in refusal(data, tmp_path)


def test_link_in_place_of_a_folder_with_extracted_members_is_refused(tmp_path):
    refusal(ArchiveBuilder().file("door/x").link("door", "elsewhere").bytes(), tmp_path)
    refusal(ArchiveBuilder().link("door/y", "x").link("door", "elsewhere").bytes(), tmp_path)


def test_file_over_a_link_replaces_the_link_and_not_its_target(tmp_path):
    data = ArchiveBuilder().file("real", b"old").link("name", "real").file("name", b"new").bytes()
    unpack(data, tmp_path)
    assert (tmp_path / "real").read_bytes() == b"old"
    assert (tmp_path / "name").read_bytes() == b"new"
    assert not (tmp_path / "name").is_symlink()


def test_file_over_a_hard_link_leaves_the_other_name_alone(tmp_path):
    data = ArchiveBuilder().file("a", b"old").entry("b", tarfile.LNKTYPE, "a").file("b", b"new").bytes()
    unpack(data, tmp_path)
    assert (tmp_path / "a").read_bytes() == b"old"
    assert (tmp_path / "b").read_bytes() == b"new"


@pytest.mark.parametrize("target", ["/etc/passwd", "../../etc/passwd", "missing", "no/such/folder/x", "sub", "."])
def test_hard_links_to_anything_but_an_earlier_file_are_refused(tmp_path, target):
    refusal(ArchiveBuilder().entry("sub", tarfile.DIRTYPE).entry("h", tarfile.LNKTYPE, target).bytes(), tmp_path)


def test_hard_link_through_an_existing_link_in_the_folder_is_refused(tmp_path):
    (tmp_path / "secret").write_text("secret")
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "door").symlink_to(tmp_path)
    with pytest.raises(AgentError):
        unpack(ArchiveBuilder().entry("h", tarfile.LNKTYPE, "door/secret").bytes(), folder)
    with pytest.raises(AgentError):
        unpack(ArchiveBuilder().file("door/secret", b"overwritten").bytes(), folder)
    assert (tmp_path / "secret").read_text() == "secret"


def test_folder_where_a_file_stands_is_refused_both_ways(tmp_path):
    refusal(ArchiveBuilder().file("x").file("x/y").bytes(), tmp_path)
    refusal(ArchiveBuilder().file("d/y").file("d").bytes(), tmp_path)


def test_names_that_differ_by_case_only_stay_apart(tmp_path):
    unpack(ArchiveBuilder().file("a", b"1").file("A", b"2").bytes(), tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["A", "a"]


def test_too_many_members_are_refused(tmp_path):
    builder = ArchiveBuilder()
    for number in range(20):
        builder.file(str(number))
    assert "more than 10 members" in refusal(builder.bytes(), tmp_path, max_members=10)


def test_archive_over_its_size_is_refused_before_the_file_is_written(tmp_path):
    message = refusal(ArchiveBuilder().file("big", bytes(2 << 20)).bytes(), tmp_path, max_bytes=1 << 20)
    assert "unpacked" in message
    assert not (tmp_path / "jail/code/big").exists()


def test_gzip_bomb_is_refused_by_its_ratio(tmp_path):
    bomb = gzip.compress(ArchiveBuilder().file("zeros", bytes(8 << 20)).bytes())
    message = refusal(bomb, tmp_path, max_ratio=100, ratio_floor_bytes=1 << 20)
    assert "for each packed one" in message


def test_bomb_after_the_end_mark_is_refused_too(tmp_path):
    bomb = gzip.compress(ArchiveBuilder().file("x").bytes() + bytes(8 << 20))
    refusal(bomb, tmp_path, max_ratio=100, ratio_floor_bytes=1 << 20)


def test_extension_header_of_gigabytes_is_refused_unread(tmp_path):
    info = tarfile.TarInfo("././@PaxHeader")
    info.type, info.size = tarfile.XHDTYPE, 1 << 32
    assert "extension header" in refusal(info.tobuf() + bytes(4096), tmp_path)


def test_negative_size_is_refused(tmp_path):
    header = bytearray(tarfile.TarInfo("x").tobuf())
    header[124:136] = b"\xff" * 12
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    assert "negative" in refusal(bytes(header) + bytes(1024), tmp_path)


def test_sparse_member_is_refused_with_the_remedy(tmp_path):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("s")
        info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "99999999999"}
        tar.addfile(info)
    assert "--sparse" in refusal(buffer.getvalue(), tmp_path)


def test_every_truncation_of_an_archive_is_noticed(tmp_path):
    plain = ArchiveBuilder().file("a", b"1" * 700).file("b", b"2" * 300).bytes()
    end_of_members = 512 + 1024 + 512 + 512
    for cut in [1, 100, 511, 512, 900, 1535, 1536, 2000, 2048, end_of_members - 1, end_of_members]:
        with pytest.raises(AgentError) as caught:
            unpack(plain[:cut], tmp_path / f"p{cut}")
        assert caught.value.fault is Fault.USER
    packed = gzip.compress(plain, mtime=0)
    for cut in range(1, len(packed)):
        with pytest.raises(AgentError):
            unpack(packed[:cut], tmp_path / f"g{cut}")


def test_damage_in_mid_archive_is_not_taken_for_the_end(tmp_path):
    data = bytearray(ArchiveBuilder().file("a", b"1" * 600).file("b").bytes())
    data[1536 + 10] ^= 0xFF  # in the header of b
    message = refusal(bytes(data), tmp_path)
    assert "checksum" in message
    assert "'a'" in message


def test_flipped_bit_in_gzip_data_is_noticed_by_its_checksum(tmp_path):
    noise = random.Random(1).randbytes(50_000)
    packed = bytearray(gzip.compress(ArchiveBuilder().file("noise", noise).bytes(), 0))
    packed[30_000] ^= 1
    assert "damaged" in refusal(bytes(packed), tmp_path)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (b"PK\x03\x04" + bytes(600), "zip"),
        (b"BZh9" + bytes(600), "bzip2"),
        (b"\xfd7zXZ\0" + bytes(600), "xz"),
        (b"#!/usr/bin/env python\n" * 100, "no tar archive"),
        (gzip.compress(b"just text " * 200, mtime=0), "no tar archive"),
    ],
)
def test_a_file_of_another_format_is_refused_with_its_format(tmp_path, data, words):
    assert words in refusal(data, tmp_path)


def test_empty_archives_are_fine(tmp_path):
    assert unpack(gzip.compress(ArchiveBuilder().bytes()), tmp_path).num_files == 0


def test_gzip_of_several_members_is_read_whole(tmp_path):
    data = ArchiveBuilder().file("a", b"1" * 5000).bytes()
    unpack(gzip.compress(data[:2000], mtime=0) + gzip.compress(data[2000:]), tmp_path)
    assert (tmp_path / "a").read_bytes() == b"1" * 5000


def test_stream_that_gives_single_bytes_is_read(tmp_path):
    class Dripping(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            return super().read(min(size, 7) if size and size > 0 else 7)

    for data in (ArchiveBuilder().file("a", b"xyz").bytes(), gzip.compress(ArchiveBuilder().file("a", b"xyz").bytes())):
        extract_tar(Dripping(data), tmp_path / str(len(data)))
        assert (tmp_path / str(len(data)) / "a").read_bytes() == b"xyz"


def test_errors_of_the_stream_pass_unchanged(tmp_path):
    class Breaking(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            raise AgentError("the store is gone", retryable=True)

    with pytest.raises(AgentError, match="the store is gone"):
        extract_tar(Breaking(), tmp_path)


names = st.lists(st.sampled_from(["a", "b", "c", "..", ".", "", "d" * 300, "l"]), min_size=1, max_size=4).map("/".join)
members = st.lists(
    st.tuples(
        st.sampled_from([tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE]),
        names,
        st.one_of(names, names.map(lambda name: "/" + name)),
    ),
    max_size=8,
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(members=members)
def test_no_archive_writes_outside_its_folder(tmp_path_factory, members):
    base = tmp_path_factory.mktemp("hostile")
    (base / "a").write_text("guard")
    folder = base / "jail"
    builder = ArchiveBuilder()
    for kind, name, target in members:
        if kind == tarfile.REGTYPE:
            builder.file(name or "x", b"evil")
        else:
            builder.entry(name or "x", kind, target)
    try:
        unpack(builder.bytes(), folder)
    except AgentError as error:
        assert error.fault is Fault.USER  # noqa: PT017 - success is fine as well
    assert sorted(os.listdir(base)) in (["a", "jail"], ["a"])
    assert (base / "a").read_text() == "guard"
    for root, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(root, name)
            if path.is_symlink():
                assert path.resolve().is_relative_to(folder.resolve())


@settings(max_examples=200)
@given(data=st.data())
def test_random_damage_ends_in_a_named_error_or_in_success(data, tmp_path_factory):
    base = tmp_path_factory.mktemp("damage")
    archive = bytearray(ArchiveBuilder().file("x" * 150, b"1" * 100).link("l", "x").file("b", b"2").bytes()[:5120])
    for _ in range(data.draw(st.integers(1, 4))):
        archive[data.draw(st.integers(0, len(archive) - 1))] = data.draw(st.integers(0, 255))
    try:
        unpack(bytes(archive), base / "jail")
    except AgentError as error:
        assert error.fault is Fault.USER  # noqa: PT017
    assert os.listdir(base) in (["jail"], [])
