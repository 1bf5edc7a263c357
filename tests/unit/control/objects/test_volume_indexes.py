"""Indexes of volumes that a power cut has damaged; an index that a new one would not better is left alone."""

import struct

import pytest

from clary.control.objects.volume_indexes import mend_damaged

SIZES = (5, 40_000, 0, 201)


@pytest.fixture
def volume(tmp_path):
    """Return data and index of a volume with four objects, written as by SeaweedFS."""
    data, index = bytearray(b"\3".ljust(8, b"\0")), bytearray()
    for key, size in enumerate(SIZES, 1):
        index += struct.pack(">QIBi", key, len(data) // 8, 0, size if size else -1)  # without content: a deletion
        data += struct.pack(">IQi", 77, key, size) + b"x" * (size + 4 + 8)
        data += b"\0" * (8 - len(data) % 8)
    paths = tmp_path / "clary_1.dat", tmp_path / "clary_1.idx"
    for path, content in zip(paths, (data, index), strict=True):
        path.write_bytes(content)
    return paths


@pytest.mark.parametrize(
    ("damage", "told", "num_kept"),
    [
        (lambda index: index + bytes(4096), "ends in a part of an entry", 4),
        (lambda index: index + bytes(17 * 40), "has entries of zeros", 4),
        (lambda index: index[:17] + bytes(len(index) - 17), "has entries of zeros", 1),
        (lambda index: index[:30] + bytes(17 * 40 - 30), "has entries of zeros", 1),
        (lambda index: index[: len(index) // 2], "lacks objects", 2),
        (lambda index: index[:40], "ends in a part of an entry", 2),
        (lambda index: b"", "is empty", 0),
        (lambda index: bytes(17 * 4), "has entries of zeros", 0),
    ],
)
def test_a_damaged_index_is_mended_kept_and_named(volume, caplog, damage, told, num_kept):
    data, index = volume
    whole = index.read_bytes()
    (sorted_index := index.with_suffix(".sdx")).touch()
    damaged = damage(index.read_bytes())
    index.write_bytes(damaged)
    assert mend_damaged(data.parent) == [index]
    assert (index.read_bytes() if index.exists() else b"") == (whole if num_kept else b"")
    assert not sorted_index.exists(), "made from the damaged index"
    assert index.with_name("clary_1.idx.damaged").read_bytes() == damaged
    done = f"{num_kept} entries are kept, {4 - num_kept} made anew" if num_kept else "it is made anew"
    assert f"{index} {told}, as after a power cut; {done} from clary_1.dat" in caplog.text
    assert mend_damaged(data.parent) == []


def test_a_hole_in_the_data_hides_no_object_that_the_damaged_index_names(volume):
    data, index = volume
    content, whole = data.read_bytes(), index.read_bytes()
    data.write_bytes(content[:8] + bytes(8192) + content[8200:])
    index.write_bytes(whole[:-17])
    assert mend_damaged(data.parent) == [index]
    assert index.read_bytes() == whole


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data,
        lambda data: data + bytes(4096),  # zeros at the end of the data
        lambda data: data + struct.pack(">IQi", 77, 9, 1000) + b"x" * 500,  # a part of an object
        lambda data: data + b"xx",
        lambda data: data[: len(data) // 2],  # the index names more than there is
    ],
)
def test_an_index_that_a_new_one_would_not_better_stays(volume, change):
    data, index = volume
    data.write_bytes(change(data.read_bytes()))
    whole = index.read_bytes()
    assert mend_damaged(data.parent) == []
    assert index.read_bytes() == whole


def test_an_index_that_ends_in_a_deletion_without_a_place_stays(volume):
    """The store's compaction writes such an entry for an object that was deleted meanwhile."""
    data, index = volume
    data.write_bytes(data.read_bytes() + struct.pack(">IQi", 77, 1, 0).ljust(32, b"\0"))
    index.write_bytes(index.read_bytes() + struct.pack(">QIBi", 1, 0, 0, -1))
    assert mend_damaged(data.parent) == []


def test_an_index_that_cannot_be_read_is_left_to_the_store_and_named(volume, caplog):
    data, index = volume
    index.write_bytes(b"")
    (first := index.with_name("clary_0.idx")).mkdir()
    first.with_suffix(".dat").write_bytes(data.read_bytes())
    assert mend_damaged(data.parent) == [index]
    assert f"{first} was not compared with its data: Is a directory" in caplog.text


def test_volumes_without_objects_or_data_and_missing_folders_are_left_alone(tmp_path):
    (tmp_path / "2.dat").write_bytes(bytes(8))
    for name in ("2.idx", "3.idx"):
        (tmp_path / name).touch()
    assert mend_damaged(tmp_path) == []
    assert mend_damaged(tmp_path / "missing") == []
