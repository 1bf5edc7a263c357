"""The root of a host: the machine's files as a private copy, with the host's own system folders and bind mounts on top.

Where: the first process of a host builds it after it has entered its namespaces and before it starts the program.
A standby host gets /opt/ml and the remaining binds of its program later, from `late_binds`. The root shows only a part
of the machine's files: the folders from `shown_folders`, and links in the paths of binds.
Order: machine, private folders, system files, /opt/ml and binds, hidden folders, the binds inside those, then hidden
folders turn read-only and the old root is unmounted. Hiding covers files of earlier binds; only binds that must be
visible inside hidden folders, such as an environment, come after it. Every path is made canonical on the machine before
the first mount: a symbolic link followed below the new root would lead back into the old root.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any

from clary.agent.host import kernel
from clary.agent.host.mounts import kernel_views
from clary.agent.host.mounts.bind_places import copy_content, opened_mount, opened_mount_point, opened_source
from clary.agent.host.mounts.late_binds import ML_FOLDER, show_late_roots
from clary.agent.host.mounts.machine_view import LAYERS_FOLDER, PRIVATE_FOLDERS, MachineView
from clary.agent.host.mounts.mount_table import is_within, submounts
from clary.agent.host.mounts.shown_folders import links_on_the_way, shown_folders
from clary.agent.host.program_users import ProgramUsers, closed_to_others, strange_owner

_VAR_TMP = "/var/tmp"  # noqa: S108 - the program's own, as /tmp is
_OWN_FILES = ("/etc/hosts", "/etc/hostname")
_LOCALHOST = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n"
_STICKY = 0o1777
_RESOLVER = "/etc/resolv.conf"


def build_host_root(
    order: Mapping[str, Any], *, in_user_namespace: bool, users: ProgramUsers | None = None
) -> list[str]:
    """Build the root and make it this process's root; return sentences about missing isolation.

    Args:
        order: the host as `program_order.host_order` describes it.
        in_user_namespace: whether this process has its rights only in a user namespace.
        users: users of the programs, if they differ from this process's user.

    The mount namespace must not propagate mounts.

    Raises:
        OSError: a mount was refused; the text names it. The mount namespace is then half built and unusable.
    """
    return _HostRoot(order, in_user_namespace=in_user_namespace, users=users).build()


class _HostRoot:
    def __init__(self, order: Mapping[str, Any], *, in_user_namespace: bool, users: ProgramUsers | None) -> None:
        self._order = order
        self._in_user_namespace = in_user_namespace
        self._users = users
        self._scratch = order["scratch_folder"]
        self._new_root = f"{self._scratch}/root"
        self._view = MachineView(
            self._new_root,
            layers_folder=f"{self._scratch}/{LAYERS_FOLDER}",
            in_user_namespace=in_user_namespace,
            users=users,
        )
        self._shown = shown_folders(order["visible_folders"], is_whole=order["shows_whole_machine"])
        self._not_isolated: list[str] = []
        # Canonical targets, parents before children, so that a bind inside another is mounted on top of it.
        is_late = order["standby"] is not None
        shown = f"{self._scratch}/empty-ml" if is_late else order["ml_folder"]
        binds: list[dict[str, Any]] = [{"source": shown, "target": ML_FOLDER, "read_only": False, "overlay": False}]
        binds += order["binds"]
        named = (*(bind["target"] for bind in order["binds"]), *order["visible_folders"])
        self._links = [link for path in named for link in links_on_the_way(path)]
        self._binds = sorted(
            (
                {**bind, "source": os.path.realpath(bind["source"]), "target": os.path.realpath(bind["target"])}
                for bind in binds
            ),
            key=lambda bind: str(bind["target"]).count("/"),
        )
        hidden = {os.path.realpath(folder) for folder in (*order["hidden_folders"], order["scratch_folder"])}
        self._never_shown = sorted(hidden)  # also hidden within bound file systems
        self._hidden = sorted(folder for folder in hidden if not _is_private(folder) and os.path.isdir(folder))

    def build(self) -> list[str]:
        for folder in ("root", LAYERS_FOLDER, "tmp", "var-tmp", "empty-ml"):
            os.mkdir(f"{self._scratch}/{folder}")
        resolver = _read_resolver()
        self._show_machine()
        self._make_links()
        self._mount_private_folders()
        self._write_system_files(resolver)
        for bind in self._binds:
            if not self._is_hidden(bind):
                self._bind(bind)
        self._hide()
        for bind in self._binds:
            if self._is_hidden(bind):
                self._bind(bind)
        self._not_isolated += self._view.strangeness()
        for folder in self._hidden:
            _make_only_this_read_only(self._new_root + folder)
        if self._order["late_roots"]:
            show_late_roots(self._new_root, roots=self._order["late_roots"], scratch_folder=self._scratch)
        kernel.pivot_root_to(self._new_root)
        return self._not_isolated

    def _show_machine(self) -> None:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
            mounts = submounts(table.read(), covered=(*PRIVATE_FOLDERS, *self._hidden))
        named = [str(bind["target"]) for bind in self._binds]
        targets = [path for path in (*named, *map(os.path.realpath, _OWN_FILES)) if not self._is_covered(path)]
        self._view.lay_out(self._shown, mounts, targets=targets)
        if self._view.shared_folders:
            names = ", ".join(self._view.shared_folders)
            self._not_isolated.append(self._view.why_read_only(f"below {names}"))
        if self._view.missing_folders:
            self._not_isolated.append(f"Files: not visible to the program: {', '.join(self._view.missing_folders)}.")
        unseen = [path for path in self._order["visible_folders"] if os.path.isdir(path) and self._is_unseen(path)]
        if unseen:
            own = ", ".join(PRIVATE_FOLDERS)
            self._not_isolated.append(
                f"Files: not visible to the program, in spite of setting visible_folders: {', '.join(unseen)}: a host "
                f"has its own {own} and does not show the service's files. Put them in another folder."
            )

    def _is_unseen(self, path: str) -> bool:
        """Whether nothing is mounted at a visible folder's place that shows its files."""
        real = os.path.realpath(path)
        return self._is_covered(real) and not any(is_within(real, str(bind["target"])) for bind in self._binds)

    def _is_hidden(self, bind: Mapping[str, Any]) -> bool:
        return any(is_within(str(bind["target"]), folder) for folder in self._hidden)

    def _make_links(self) -> None:
        """Create the links in paths of binds and visible folders, if the machine's own links are not shown."""
        for place, text in self._links:
            target = self._new_root + place
            if not self._is_covered(place) and not os.path.lexists(target):
                self._view.make_folder(os.path.dirname(target))
                os.symlink(text, target)

    def _is_covered(self, path: str) -> bool:
        return _is_private(path) or any(is_within(path, folder) for folder in self._hidden)

    def _mount_private_folders(self) -> None:
        root, user, users = self._new_root, self._in_user_namespace, self._users
        owned = "" if users is None else f",uid={users.first_id},gid={users.first_id}"
        for folder in PRIVATE_FOLDERS:
            self._view.make_folder(root + folder)
        self._not_isolated += kernel_views.mount_proc(root, in_user_namespace=user)
        kernel_views.mount_sys(root, cgroup_views=self._order["cgroup_views"])
        kernel_views.mount_dev(
            root,
            with_gpus=self._order["with_gpus"],
            shared_memory_bytes=self._order["memory_bytes"],
            in_user_namespace=user,
            users=users,
        )
        flags = kernel.MS_NOSUID | kernel.MS_NODEV
        kernel.mount("tmpfs", f"{root}/run", kind="tmpfs", flags=flags, options=f"mode=755{owned}")
        self._view.make_folder(f"{root}/run/lock", mode=_STICKY)
        # On disk and not in memory: files that training writes to /tmp would count against the host's memory limit.
        for name, place in (("tmp", "/tmp"), ("var-tmp", _VAR_TMP)):  # noqa: S108
            os.chmod(f"{self._scratch}/{name}", _STICKY)
            if users is not None:
                users.own(f"{self._scratch}/{name}")
            if not os.path.islink(root + place):
                kernel.mount(f"{self._scratch}/{name}", root + place, flags=kernel.MS_BIND)

    def _hide(self) -> None:
        for folder in self._hidden:
            # A folder inside a hidden folder is already covered.
            if os.path.isdir(self._new_root + folder):
                flags = kernel.MS_NOSUID | kernel.MS_NODEV
                kernel.mount("tmpfs", self._new_root + folder, kind="tmpfs", flags=flags, options="size=1m,mode=755")

    def _write_system_files(self, resolver: tuple[str, bytes] | None) -> None:
        hosts = _LOCALHOST + "".join(f"{address} {name}\n" for name, address in self._order["hosts_file"].items())
        for path, text in zip(_OWN_FILES, (hosts, f"{self._order['hostname']}\n"), strict=True):
            source = f"{self._scratch}/{os.path.basename(path)}"
            with open(source, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(source, 0o644)
            self._bind({"source": source, "target": os.path.realpath(path), "read_only": False, "overlay": False})
        if resolver is not None:
            # resolv.conf is often a link into /run, which is private in the host.
            path, content = resolver
            with contextlib.suppress(OSError):
                self._view.make_folder(os.path.dirname(self._new_root + path))
                with open(self._new_root + path, "wb") as copy:
                    copy.write(content)
                if self._users is not None:
                    self._users.own(self._new_root + path)

    def _bind(self, bind: Mapping[str, Any]) -> None:
        with opened_source(bind, hidden=self._never_shown) as source:
            is_folder = os.path.isdir(source)
            try:
                with opened_mount_point(
                    self._new_root, bind["target"], is_folder=is_folder, users=self._users
                ) as target:
                    is_bound = self._mount_bind(bind, source, target, is_folder=is_folder)
            except OSError as error:
                raise OSError(
                    error.errno, f"could not show {bind['source']} at {bind['target']}: {error.strerror}"
                ) from error
        # A folder over which no overlay could be laid belongs to the machine: other programs may run its files.
        if is_bound and (bind["read_only"] or bind["overlay"]):
            with opened_mount(self._new_root, bind["target"], is_folder=is_folder) as mounted:
                kernel.make_read_only(mounted)

    def _mount_bind(self, bind: Mapping[str, Any], source: str, target: str, *, is_folder: bool) -> bool:
        """Mount a bind; return whether the target is the source itself, and not an overlay or a copy."""
        kept_as = bind.get("kept_as", "")
        if bind["overlay"] and is_folder:
            if self._view.overlay(source, target, is_mapped=True, kept_as=kept_as):
                return False
            if kept_as:
                raise OSError(f"no private layer could be laid over {bind['source']}: {self._view.refusal}")
            if bind["copied_otherwise"]:
                copy_content(source, target)
                return False
            self._not_isolated.append(self._view.why_read_only(f"in {bind['target']}"))
        if bind.get("keeps_owners", False):
            kernel.mount(source, target, flags=kernel.MS_BIND | kernel.MS_REC)
            if self._users is not None and (said := closed_to_others(source, target=bind["target"])):
                self._not_isolated.append(said)
            return True
        if said := self._view.bind(source, target):
            self._not_isolated.append(f"Files: the owner of {bind['target']} is shown as nobody; {said}.")
        elif self._users is not None and (said := strange_owner(source)):
            self._not_isolated.append(said)
        return True


def _make_only_this_read_only(folder: str) -> None:
    """Make one mount read-only and leave its submounts unchanged."""
    flags = kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV
    if os.path.ismount(folder):
        kernel.mount("none", folder, flags=flags)


def _is_private(path: str) -> bool:
    return any(is_within(path, folder) for folder in PRIVATE_FOLDERS)


def _read_resolver() -> tuple[str, bytes] | None:
    """Return path and content of the resolver's configuration, if the host hides its path."""
    path = os.path.realpath(_RESOLVER)
    if not _is_private(path):
        return None
    try:
        with open(path, "rb") as file:
            return path, file.read()
    except OSError:
        return None
