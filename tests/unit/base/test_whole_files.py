"""Files that are replaced atomically, without following a link, and private if asked."""

import os
import stat

import pytest

from clary.base.whole_files import remove_durably, replace_durably


def test_a_file_is_replaced_in_one_step_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "file"
    replace_durably(path, b"old")
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(5, "Input/output error")))
    with pytest.raises(OSError, match="Input/output"):
        replace_durably(path, b"new")
    assert path.read_bytes() == b"old"
    assert [found.name for found in tmp_path.iterdir()] == ["file"]


def test_nothing_is_written_through_a_link_in_place_of_the_file(tmp_path):
    target = tmp_path / "theirs"
    target.write_text("theirs")
    path = tmp_path / "token"
    path.symlink_to(target)
    replace_durably(path, b"secret")
    assert target.read_text() == "theirs"
    assert not path.is_symlink()


def test_a_secret_is_closed_to_others_and_a_missing_file_is_removed_well(tmp_path):
    path = tmp_path / "token"
    replace_durably(path, b"secret")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    remove_durably(path)
    remove_durably(path)
    assert list(tmp_path.iterdir()) == []
