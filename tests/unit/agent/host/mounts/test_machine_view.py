"""A view of the machine's files, laid out while the machine's files change."""

import os
from pathlib import Path

import pytest

from clary.agent.host.mounts.machine_view import MachineView
from clary.agent.host.mounts.shown_folders import ShownFolder


@pytest.fixture
def view(tmp_path: Path) -> MachineView:
    new_root = tmp_path / "root"
    new_root.mkdir()
    return MachineView(str(new_root), layers_folder=str(tmp_path / "layers"), in_user_namespace=True)


def test_files_that_vanish_while_a_folder_is_laid_out_are_left_out(
    view: MachineView, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "listdir", lambda folder: ["vanished"])
    view._rebuild(str(tmp_path))


def test_an_existing_file_that_cannot_be_bound_is_an_error(view: MachineView, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "file").write_text("")
    view._shown = (ShownFolder(str(folder), is_system=False),)
    with pytest.raises(FileNotFoundError):  # its parent folder was not made below the new root
        view._rebuild(str(folder))
