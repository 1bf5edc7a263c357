"""A host's own disk is mounted only where the machine does not see the mount."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from clary.agent.host import kernel
from clary.agent.host.mounts import own_disk
from clary.agent.host.mounts.own_disk import OwnDisk
from clary.base.errors import AgentError


@pytest.fixture
def disk(tmp_path: Path, monkeypatch) -> OwnDisk:
    monkeypatch.setattr(own_disk, "_mounts", own_disk._Mounts())
    host = tmp_path / "algo-1"
    return OwnDisk(host, ml_folder=host / "ml", size_bytes=1 << 20, outside=())


@pytest.fixture
def mounted(monkeypatch) -> list[str]:
    """Replace `kernel.mount` by a function that records its targets; return their list."""
    found: list[str] = []
    monkeypatch.setattr(kernel, "mount", lambda source, target, **_: found.append(target))
    monkeypatch.setattr(kernel, "unmount", lambda target, **_: None)
    return found


def test_nothing_is_mounted_where_the_machine_would_see_it(disk: OwnDisk, mounted: list[str], tmp_path: Path) -> None:
    with pytest.raises(AgentError, match=r"algo-1: a disk of its own needs a mount namespace.*agent has not made one"):
        disk.mount(available_bytes=None)
    assert mounted == []
    assert not (tmp_path / "algo-1").exists()


@pytest.mark.parametrize("failing", ["unshare", "mount"])
def test_a_refused_mount_namespace_is_reported_only_when_a_disk_is_mounted(
    disk: OwnDisk, mounted: list[str], monkeypatch, failing: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(kernel, "unshare", lambda flags: None)
    monkeypatch.setattr(kernel, failing, refuse)
    own_disk.enter_own_mounts()
    with pytest.raises(AgentError, match=r"it could not be made: .*Operation not permitted.*runs as root"):
        disk.mount(available_bytes=None)
    assert mounted == []


def test_a_mount_namespace_of_another_process_does_not_count(disk: OwnDisk, mounted: list[str], monkeypatch) -> None:
    monkeypatch.setattr(kernel, "unshare", lambda flags: None)
    own_disk.enter_own_mounts()
    assert mounted == ["/"]
    monkeypatch.setattr(own_disk.os, "getpid", lambda: -1)
    with pytest.raises(AgentError, match="mount namespace"):
        disk.mount(available_bytes=None)
    assert mounted == ["/"]
