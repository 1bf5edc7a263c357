"""Parts and folders of checkpoints: complete or absent, when a step becomes visible, and which steps are pruned."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from clary.train.checkpoint.errors import CheckpointError
from clary.train.checkpoint.folders import (
    MARKER,
    METADATA,
    complete,
    order_of,
    prune,
    save_name,
    scan,
    step_folder,
    writing_folder,
)
from clary.train.checkpoint.parts import PartIndex, StoredPart, data_name, index_name, write_part, write_whole
from clary.train.checkpoint.places import Place, partners
from clary.train.checkpoint.stop_notice import is_stop_ordered


def index_of(rank: int = 0, step: int = 1, save: str = "a1-1", data: bytes = b"abcdef") -> PartIndex:
    places = {("model/weight", (0, 2)): (0, 4), ("=loader", None): (4, len(data) - 4)}
    return PartIndex(save=save, step=step, rank=rank, num_parts=2, num_bytes=len(data), places=places)


def write(root: Path, *, step: int, save: str = "a1-1", ranks: tuple[int, ...] = (0, 1)) -> Path:
    folder = writing_folder(root, step, save)
    folder.mkdir()
    (folder / METADATA).write_bytes(b"metadata")
    for rank in ranks:
        write_part(folder, index_of(rank, step, save), [memoryview(b"abcd"), memoryview(b"ef")])
    return folder


def show(root: Path, step: int, saved_at: float, save: str = "a1-1") -> Path:
    complete(root, write(root, step=step, save=save), index=index_of(step=step, save=save), saved_at=saved_at)
    return step_folder(root, step)


def test_a_part_is_read_back_unchanged(tmp_path: Path) -> None:
    write_part(tmp_path, index_of(3), [memoryview(b"abcd"), memoryview(b"ef")])
    index = PartIndex.from_json((tmp_path / index_name(3)).read_bytes(), "here")
    assert index == index_of(3)
    part, buffer = StoredPart(tmp_path, index), bytearray(3)
    part.read_into(2, memoryview(buffer))
    part.close()
    assert buffer == b"cde"


def test_a_truncated_part_is_an_error_with_the_position(tmp_path: Path) -> None:
    write_part(tmp_path, index_of(), [memoryview(b"abc")])
    part = StoredPart(tmp_path, index_of())
    with pytest.raises(CheckpointError, match=r"part-00000.bin ends before byte 6; expected 6 bytes"):
        part.read_into(0, memoryview(bytearray(6)))
    part.close()


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"format": 1, "places": [[1]]}', b"\xff"])
def test_an_invalid_index_is_an_error(data: bytes) -> None:
    with pytest.raises(CheckpointError, match="over there is no index"):
        PartIndex.from_json(data, "over there")


def test_an_index_of_a_later_release_is_refused_with_the_advice_to_upgrade() -> None:
    document = {**json.loads(index_of().to_json()), "format": 2}
    with pytest.raises(CheckpointError, match="format 2, this release knows up to 1: upgrade"):
        PartIndex.from_json(json.dumps(document).encode(), "it")


def test_a_failed_write_leaves_the_earlier_file(tmp_path: Path) -> None:
    write_whole(tmp_path / "file", b"first")
    (tmp_path / ".file.part").mkdir()
    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path / "file", b"second")
    assert (tmp_path / "file").read_bytes() == b"first"


def test_only_complete_parts_of_one_save_count(tmp_path: Path) -> None:
    folder = write(tmp_path, step=1, ranks=(0, 1, 2, 3))
    (folder / index_name(1)).unlink()
    (folder / data_name(2)).write_bytes(b"abcde")
    (folder / index_name(3)).write_bytes(b"{")
    mixed = write(tmp_path, step=2, save="b2-1", ranks=(0,))
    write_part(mixed, index_of(1, 2, "c3-1"), [memoryview(b"abcdef")])
    (tmp_path / "step-000000000009").symlink_to(folder)
    (tmp_path / "step-of-somebody-else").mkdir()
    (found,) = scan(tmp_path)
    assert (found.path, found.save, sorted(found.parts), found.has_metadata) == (folder, "a1-1", [0], True)


def test_a_step_becomes_visible_complete_and_replaces_an_earlier_one(tmp_path: Path) -> None:
    show(tmp_path, 1, 10.0)
    folder = show(tmp_path, 1, 20.0, save="b2-1")
    assert [found.save for found in scan(tmp_path)] == ["b2-1"]
    assert os.listdir(tmp_path) == [folder.name]
    marker = json.loads((folder / MARKER).read_bytes())
    assert marker == {"step": 1, "save": "b2-1", "saved_at": 20.0, "num_parts": 2}
    complete(tmp_path, folder, index=index_of(save="b2-1"), saved_at=30.0)  # the step is complete already
    assert json.loads((folder / MARKER).read_bytes()) == marker


def test_the_last_written_step_is_kept_whatever_its_number(tmp_path: Path) -> None:
    for step, saved_at in ((100, 1.0), (3, 2.0), (2, 3.0)):
        show(tmp_path, step, saved_at)
    newest = show(tmp_path, 1, 4.0)
    write(tmp_path, step=5, save="beff-9")
    write(tmp_path, step=6, save="a1-1")
    begun = write(tmp_path, step=7, save="a1-11").name
    (tmp_path / ".gone-of-a-removal-that-was-broken-off").mkdir()
    (tmp_path / "notes.txt").touch()
    prune(tmp_path, keep=2, newest=newest, save="a1-a")
    assert sorted(os.listdir(tmp_path)) == [begun, "notes.txt", "step-000000000001", "step-000000000002"]
    prune(tmp_path, keep=1, newest=newest, save="a1-11")
    assert sorted(os.listdir(tmp_path)) == ["notes.txt", "step-000000000001"]


def test_a_clock_that_was_set_back_does_not_matter_to_saves_with_order_numbers(tmp_path: Path) -> None:
    show(tmp_path, 7, 9.0)  # of a release without order numbers
    show(tmp_path, 1, 8.0, save=save_name("b2", 1))
    show(tmp_path, 2, 3.0, save=save_name("a1", 2))
    save = save_name("a1", 3)
    newest = show(tmp_path, 3, 2.0, save=save)
    begun = write(tmp_path, step=4, save=save_name("a1", 4)).name
    write(tmp_path, step=5, save=save_name("a1", 2))
    prune(tmp_path, keep=2, newest=newest, save=save)
    assert sorted(os.listdir(tmp_path)) == [begun, "step-000000000002", "step-000000000003"]


@pytest.mark.parametrize(
    ("save", "order"),
    [(save_name("0a1b", 1), 1), (save_name("0a1b", 1 << 50), 1 << 50), ("0a1b-1f", 0), ("0a1b", 0), ("", 0)],
)
def test_a_save_of_a_release_without_order_numbers_has_order_0(save: str, order: int) -> None:
    assert order_of(save) == order


def test_copies_are_held_by_another_host() -> None:
    a, b, c = (Place(host=name, leader=leader) for name, leader in (("a", 0), ("b", 2), ("c", 5)))
    assert partners([a, a, b, b]) == [2, 3, 0, 1]
    assert partners([a, a, b, a, b, c]) == [2, 4, 5, 2, 5, 0]
    assert partners([a, a]) == [None, None]
    assert partners([Place(host="a", leader=0), Place(host="a", leader=1)]) == [1, 0]


def test_a_stop_counts_as_ordered_once_the_notice_file_exists(tmp_path: Path) -> None:
    assert not is_stop_ordered({})
    notice = tmp_path / "notice"
    assert not is_stop_ordered({"CLARY_STOP_NOTICE": str(notice)})
    notice.touch()
    assert is_stop_ordered({"CLARY_STOP_NOTICE": str(notice)})


def test_the_package_is_imported_without_torch() -> None:
    code = "import sys, clary.train.checkpoint as c; assert c.CheckpointError; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
