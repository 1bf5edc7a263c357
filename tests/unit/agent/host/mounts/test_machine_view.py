"""A view of the machine's files, laid out while the machine's files change."""

import functools
import os
import types
from pathlib import Path

import pytest

from clary.agent.host.mounts import machine_view
from clary.agent.host.mounts import open_copy as open_copy_module
from clary.agent.host.mounts.machine_view import MachineView
from clary.agent.host.mounts.open_copy import open_copy
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


class Machine:
    """A machine whose kernel mounts where the test permits it; `laid` are the lower folders of the mounted overlays."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.etc = tmp_path / "etc"
        self.etc.mkdir()
        (self.etc / "hosts").write_text("x")
        for path, mode in ((self.etc, 0o755), (self.etc / "hosts", 0o644)):
            path.chmod(mode)
        self.cache, self.layers = tmp_path / "cache", tmp_path / "layers"
        self.layers.mkdir()
        self.laid: list[str] = []
        self.mapped: dict[str, str] = {}  # mount point -> folder
        self.refused: tuple[str, ...] = ()  # folders below which overlays are refused
        self.unmapped: tuple[str, ...] = ()  # folders below which owners cannot be mapped
        monkeypatch.setattr(machine_view, "UNCACHED", (str(self.etc),))
        monkeypatch.setattr(machine_view, "open_copy", functools.partial(open_copy, cache_folder=str(self.cache)))
        monkeypatch.setattr(machine_view, "_mount_overlay", self.mount)
        monkeypatch.setattr(machine_view, "_device_of", lambda path: path.startswith(str(self.cache)))
        monkeypatch.setattr(machine_view.kernel, "bind_mapped", self.bind_mapped)

    def view(self, *, has_users: bool = False) -> MachineView:
        own = types.SimpleNamespace(namespace=0, on_machine=lambda number: number, own=lambda path: None)
        return MachineView(
            "/new", layers_folder=str(self.layers), in_user_namespace=False, users=own if has_users else None
        )

    def overlay(self, view: MachineView) -> bool:
        return view.overlay(str(self.etc), "/new/etc", is_mapped=True, is_system=True)

    def mount(self, target: str, options: str) -> None:
        given = dict(option.split("=") for option in options.split(",") if "=" in option)
        assert os.listdir(given["workdir"]) == []
        os.mkdir(f"{given['workdir']}/volatile")
        lower = self.mapped.get(given["lowerdir"], given["lowerdir"])
        if lower.startswith(self.refused):
            raise OSError(22, "no lower layer")
        self.laid.append(lower)

    def bind_mapped(self, source: str, target: str, *, users: int) -> None:
        if source.startswith(self.unmapped):
            raise OSError(22, "no mapped owners")
        self.mapped[target] = source


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


@pytest.mark.parametrize("why", ["too large", "unreadable"])
def test_a_system_folder_that_cannot_be_copied_stays_writable_and_is_named(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    if why == "too large":
        monkeypatch.setattr(open_copy_module, "MAX_ENTRIES", 0)
    else:

        def refuse(source: int, target: str) -> None:
            raise OSError(5, "input/output error")

        monkeypatch.setattr(open_copy_module, "_copy_file", refuse)
    view = machine.view()
    assert machine.overlay(view)
    assert machine.laid == [str(machine.etc)]
    [sentence] = view.strangeness()
    assert f"{machine.etc} (" in sentence
    assert ("has more than" if why == "too large" else "input/output error") in sentence


@pytest.mark.parametrize("kind", ["refused", "unmapped"])
def test_a_shared_copy_that_cannot_be_mounted_is_replaced_by_one_beside_the_upper_layer(
    machine: Machine, kind: str
) -> None:
    setattr(machine, kind, (str(machine.cache),))
    view = machine.view(has_users=True)
    assert machine.overlay(view)
    assert machine.laid == [f"{machine.layers}/0/copy"]
    assert os.listdir(machine.laid[0]) == ["hosts"]
    assert view.strangeness() == []


def test_a_copy_is_shown_with_strange_owners_where_none_can_be_mapped(machine: Machine) -> None:
    machine.unmapped = ("/",)
    view = machine.view(has_users=True)
    assert machine.overlay(view)
    assert machine.laid == [f"{machine.layers}/0/copy"]
    [sentence] = view.strangeness()
    assert "no mapped owners" in sentence


def test_without_any_copy_that_can_be_mounted_the_folder_itself_is_the_lower_layer(machine: Machine) -> None:
    machine.refused = (str(machine.cache), str(machine.layers))
    view = machine.view()
    assert machine.overlay(view)
    assert machine.laid == [str(machine.etc)]
    assert "no lower layer" in view.strangeness()[0]
    machine.refused = ("/",)
    assert not machine.overlay(view)
    assert len(view.strangeness()) == 1
