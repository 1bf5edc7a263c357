"""Bind mounts that a host gets after its creation, because they depend on its program.

Where: `host_root` shows the folders that may contain sources of such binds ("late roots"); `standing_by` mounts the
binds before any process of the program runs, and unmounts the late roots again unless the host lasts.

[Note: visibility of the late roots]
The late roots contain other jobs' data, and a standby host runs an interpreter that has imported packages of one job's
environment. So only the keeper's mount namespace has the late roots. The interpreter gets a mount namespace of its own,
from which the late roots are unmounted before its exec, and which receives the keeper's later mounts (MS_SLAVE). Access
rights would not suffice: the interpreter is root of the host. The program's own /opt/ml is both a late root and the
first late bind. The agent builds it while the host stands by, for a program that may have another environment. If the
host showed it then, a process of the host could create a link in it, and the agent would follow the link. Until then
the host shows an empty folder of its own at /opt/ml.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from clary.agent.host import kernel
from clary.agent.host.leftovers import remove_tree
from clary.agent.host.mounts.bind_places import copy_content, opened_mount_point
from clary.agent.host.mounts.machine_view import MachineView
from clary.agent.host.mounts.mount_table import is_within
from clary.agent.host.program_users import ProgramUsers

ML_FOLDER = "/opt/ml"
_PLACE = "/run/.clary-late"  # /run is a tmpfs of the host's own
_LAYERS = f"{_PLACE}/layers"
_OWNER_ONLY = 0o700


def show_late_roots(new_root: str, *, roots: Sequence[str], scratch_folder: str) -> None:
    """Make `roots` reachable in the root that is being built.

    Args:
        new_root: the new root, while the old root is still reachable.
        roots: canonical paths on the machine.
        scratch_folder: of the host; contains the layers of overlays.
    """
    os.mkdir(new_root + _PLACE, _OWNER_ONLY)
    flags = kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount("tmpfs", new_root + _PLACE, kind="tmpfs", flags=flags, options="size=64k,mode=700")
    layers = f"{scratch_folder}/late-layers"
    os.mkdir(layers)
    for source, place in ((layers, _LAYERS), *((root, _root_place(number)) for number, root in enumerate(roots))):
        os.mkdir(new_root + place, _OWNER_ONLY)
        # A late root that contains this host's folder would expose the new root a second time.
        flags = kernel.MS_BIND if is_within(scratch_folder, source) else kernel.MS_BIND | kernel.MS_REC
        kernel.mount(source, new_root + place, flags=flags)


def share_mounts() -> None:
    """Propagate later mounts to mount namespaces that are created from this one."""
    kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_SHARED)
    kernel.mount("none", _PLACE, flags=kernel.MS_REC | kernel.MS_PRIVATE)


def leave_late_roots() -> None:
    """Enter a new mount namespace without late roots that receives later mounts from the old namespace."""
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_SLAVE)
    kernel.unmount(_PLACE, flags=kernel.MNT_DETACH)


class LateBinds:
    """The late binds of one host: mounted for its program and, if the roots are kept, for further programs.

    Kept roots stay visible to the keeper while the program runs. The program does not see them: it is in the
    interpreter's mount namespace, and it cannot trace the keeper to use the keeper's view.

    Args:
        roots: as passed to `show_late_roots`; without roots there can be no binds.
        keeps_roots: whether another program may follow.
        in_user_namespace: whether this process has its rights from a user namespace.
        users: of the programs, if they differ from this process's user.
    """

    def __init__(
        self, *, roots: Sequence[str], keeps_roots: bool, in_user_namespace: bool, users: ProgramUsers | None = None
    ) -> None:
        self._roots = tuple(roots)
        self._keeps_roots = keeps_roots
        self._in_user_namespace = in_user_namespace
        self._users = users
        self._num_mounted = 0  # number of programs that had binds
        self._targets: list[str] = []  # current mounts, in order
        self.why_final = ""  # reason why the mounts cannot be undone

    def mount(self, binds: Sequence[Mapping[str, Any]]) -> list[str]:
        """Mount `binds`; return sentences about missing isolation.

        Afterwards the late roots are unmounted and mounts are no longer shared, unless the roots are kept.

        Args:
            binds: fields of a `sandbox.Bind` each, without `below`; sources are canonical and lie below one of the
                roots. One of them is the program's /opt/ml.

        Raises:
            OSError: a mount was refused; the text names it. The host is then unusable.
        """
        if not self._roots:
            return []
        self._num_mounted += 1
        layers = f"{_LAYERS}/{self._num_mounted}"
        os.mkdir(layers)
        if self._keeps_roots:  # an overlay keeps its layers after the unmount below
            kernel.mount(layers, layers, flags=kernel.MS_BIND)
        else:
            kernel.unmount(_target_of(ML_FOLDER), flags=kernel.MNT_DETACH)
        view = MachineView("", layers_folder=layers, in_user_namespace=self._in_user_namespace, users=self._users)
        not_isolated: list[str] = []
        # Parents before children, so that a bind inside another is mounted on top of it.
        for number, bind in enumerate(sorted(binds, key=lambda bind: str(bind["target"]).count("/"))):
            not_isolated += self._mount_one(bind, view, name=f"{self._num_mounted}-{number}")
        not_isolated += view.strangeness()
        if self._keeps_roots:
            kernel.unmount(layers, flags=kernel.MNT_DETACH)
        else:
            kernel.unmount(_PLACE, flags=kernel.MNT_DETACH)
            os.rmdir(_PLACE)
            kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
        return not_isolated

    def unmount(self) -> None:
        """Unmount the binds after the last process of the program has ended; only with kept roots.

        Raises: OSError: the host is then unusable.
        """
        for target in reversed(self._targets):
            kernel.unmount(target, flags=kernel.MNT_DETACH)
        self._targets.clear()
        remove_tree(f"{_LAYERS}/{self._num_mounted}")

    def _mount_one(self, bind: Mapping[str, Any], view: MachineView, *, name: str) -> list[str]:
        if bind.get("below") is not None:
            raise ValueError(
                f"bind {bind['source']} at {bind['target']}: a file system cannot be bound after the host's creation"
            )
        source, place = _place_of(bind["source"], self._roots), _target_of(bind["target"])
        is_folder = os.path.isdir(source)
        if not is_folder and not os.path.exists(source):
            raise FileNotFoundError(f"bind {bind['source']} at {bind['target']}: the source does not exist")
        said: list[str] = []
        copy = ""
        with opened_mount_point("/", place, is_folder=is_folder, users=self._users) as target:
            if bind["overlay"] and is_folder:
                if view.overlay(source, target, is_mapped=True):
                    self._targets.append(place)
                    return []
                if bind["copied_otherwise"]:
                    self.why_final = f"{source} was copied to {place}"
                    copy_content(source, target)
                    return []
                said.append(view.why_read_only(f"in {bind['target']}"))
            if bind["read_only"] or bind["overlay"]:  # other programs may run the files of a folder of the machine
                source = copy = _read_only_copy(source, name=name, is_folder=is_folder)
            if why := view.bind(source, target):
                said.append(f"Files: the owner of {bind['target']} is shown as nobody; {why}.")
            self._targets.append(place)
        if copy and self._keeps_roots:
            kernel.unmount(copy, flags=kernel.MNT_DETACH)
            os.rmdir(copy) if is_folder else os.unlink(copy)
        return said


def place_on_roots(path: str, roots: Sequence[str]) -> str:
    """Return where a path of the machine appears in a root that has late roots.

    Raises: ValueError: the path is not below a late root.
    """
    return _place_of(path, roots)


def _root_place(number: int) -> str:
    return f"{_PLACE}/{number}"


def _target_of(path: str) -> str:
    """Return the resolved mount point of a bind at `path`; the interpreter may have created links in this root."""
    target = os.path.realpath(path)
    if is_within(target, _PLACE):
        raise OSError(f"bind at {path}: something in the host has turned the place into a link to {target}")
    return target


def _place_of(source: str, roots: Sequence[str]) -> str:
    """Return the path of `source` in this root."""
    for number, root in enumerate(roots):
        if source == root or source.startswith(root.rstrip("/") + "/"):
            return os.path.normpath(f"{_root_place(number)}/{os.path.relpath(source, root)}")
    raise ValueError(f"bind {source}: it lies below none of the late roots {', '.join(roots)}")


def _read_only_copy(source: str, *, name: str, is_folder: bool) -> str:
    """Return a path of `source` on a new read-only mount.

    A mount is propagated to other namespaces in its first state; a later change to read-only is not propagated.
    """
    place = f"{_PLACE}/read-only-{name}"
    with opened_mount_point("/", place, is_folder=is_folder) as target:
        kernel.mount(source, target, flags=kernel.MS_BIND | kernel.MS_REC)
    kernel.make_read_only(place)
    return place
