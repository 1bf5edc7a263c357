"""The upper layer of an overlay, which receives a host's changes, and its content before the mount.

Where: `machine_view` makes one for every folder of the machine that a host shows, if the agent runs as real root.
Entries of the layer hide entries of the machine's folder. Folders of the layer have owners that exist among the
programs' users. Closed files, which programs must not read, are hidden. A few closed files are replaced, because sudo,
su and sshd need them: the user database has no passwords, and sudo's rules give rights to root alone.
Source: kernel Documentation/filesystems/overlayfs.rst, "whiteouts and opaque directories".
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable

from clary.agent.host.program_users import ProgramUsers

_OPAQUE = "trusted.overlay.opaque"
_WITHOUT_PASSWORDS = ("/etc/shadow", "/etc/gshadow")
_SUDOERS, _SUDO_RULES = "/etc/sudoers", "root ALL=(ALL:ALL) ALL\n"
_OPEN_FOLDER = 0o005


class UpperLayer:
    """The upper folder of one overlay.

    Args:
        lower: folder of the machine.
        upper: existing, empty folder.
        users: the programs' users; None if programs have the same users as this process.
    """

    def __init__(self, lower: str, upper: str, *, users: ProgramUsers | None) -> None:
        self._lower = lower.rstrip("/")
        self._upper = upper
        self._users = users

    def copy_folder(self, relative: str) -> str:
        """Make a folder in the layer, and its parents, with the machine's mode and owner; return its path."""
        place = self._upper + relative
        if relative:
            if os.path.isdir(place):
                return place
            self.copy_folder(os.path.dirname(relative.rstrip("/")).rstrip("/"))
            os.mkdir(place)
        status = os.stat(self._lower + relative or "/")
        os.chmod(place, stat.S_IMODE(status.st_mode))
        self._give(place, status)
        return place

    def leave_out(self, closed: Iterable[str]) -> None:
        """Hide closed paths of the lower folder: folders become empty, files are hidden or replaced."""
        for path in closed:
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                self._leave_out(path)

    def open_folders(self, folder: str) -> None:
        """Let programs add and replace files in `folder` and its direct subfolders, if all users may read these."""
        with os.scandir(folder) as entries:
            names = ["", *(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))]
        for name in names:
            path = f"{folder}/{name}".rstrip("/")
            if os.stat(path).st_mode & _OPEN_FOLDER == _OPEN_FOLDER:
                self.copy_folder(path[len(self._lower) :])

    def _leave_out(self, path: str) -> None:
        status = os.lstat(path)
        relative = path[len(self._lower) :]
        self.copy_folder(os.path.dirname(relative).rstrip("/"))
        place = self._upper + relative
        if stat.S_ISDIR(status.st_mode):
            os.mkdir(place)
            os.chmod(place, stat.S_IMODE(status.st_mode))
            os.setxattr(place, _OPAQUE, b"y")
            self._give(place, status)
            return
        text = _instead_of(path)
        if text is None:
            os.mknod(place, stat.S_IFCHR, os.makedev(0, 0))
            return
        descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(text)
        os.chmod(place, stat.S_IMODE(status.st_mode))
        self._give(place, status)

    def _give(self, place: str, status: os.stat_result) -> None:
        user, group = status.st_uid, status.st_gid
        if self._users is not None:
            user, group = self._users.on_machine(user), self._users.on_machine(group)
        os.chown(place, user, group)


def _instead_of(path: str) -> bytes | None:
    """Return the bytes that replace a closed file, or None if the file is hidden."""
    if path == _SUDOERS:
        return _SUDO_RULES.encode()
    if path not in _WITHOUT_PASSWORDS:
        return None
    with open(path, "rb") as file:
        entries = [line.split(b":") for line in file.read().splitlines() if line.count(b":") > 1]
    return b"".join(b":".join([entry[0], b"*", *entry[2:]]) + b"\n" for entry in entries)
