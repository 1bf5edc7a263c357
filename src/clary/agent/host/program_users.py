"""The users of a host's programs: the first process opens their namespace, checks it, and makes them owners of files.

Where: `init` opens the namespace for a host of a root service; the modules of `mounts` make the users owners of files;
`confinement` makes each process one of the users. The first process itself stays root of the machine.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Mapping
from typing import Any

from clary.agent.host import kernel
from clary.base.mapped_users import NUM_IDS, MappedUsers, first_id_of, make_mapped_namespaces

_OPEN_FOLDER = 0o005


class ProgramUsers:
    """A range of the machine's ids, which programs see as 0 to 65535.

    Args:
        namespace: descriptor of the user namespace.
        first_id: of the range.
    """

    def __init__(self, namespace: int, first_id: int) -> None:
        self.namespace = namespace
        self.first_id = first_id

    def on_machine(self, inside: int) -> int:
        """Return the machine's id for a user or group of the programs."""
        return MappedUsers(namespace_path="", first_id=self.first_id).on_machine(inside)

    def own(self, path: str) -> None:
        """Make the programs' root the owner of a new file or folder."""
        os.chown(path, self.first_id, self.first_id, follow_symlinks=False)

    def enter(self) -> None:
        """Become root of the user namespace for ever; the process must have only one thread."""
        kernel.join_namespace(self.namespace, kind=kernel.CLONE_NEWUSER)
        os.setgroups(())
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
        kernel.limit_capabilities()  # entering the namespace has refilled the bounding set


def open_program_users(order: Mapping[str, Any]) -> tuple[ProgramUsers | None, list[str]]:
    """Return the users of a host made with real root, or None and sentences about missing isolation.

    Args:
        order: the host as `program_order.host_order` describes it.
    """
    planned = order["mapped_users"]
    try:
        if planned is not None:
            namespace = os.open(planned["namespace_path"], os.O_RDONLY | os.O_CLOEXEC)
            users = ProgramUsers(namespace, planned["first_id"])
        else:
            first_id = first_id_of(os.getpid())
            users = ProgramUsers(make_mapped_namespaces(first_id, num_networks=0)[0], first_id)
    except OSError as error:
        return None, [_shared(f"no user namespace could be made for them: {error}")]
    return users, []


def why_not_mapped(users: ProgramUsers, *, folders: tuple[str, ...], scratch_folder: str) -> str:
    """Return "", or the reason why the programs' users cannot own files in `folders`.

    Args:
        users: of the programs.
        folders: existing folders; each is mounted for a moment.
        scratch_folder: private folder for the mount point, which is removed again.

    The calling process must be in a mount namespace of its own.
    """
    for folder in folders:
        place = f"{scratch_folder}/mapped"
        os.mkdir(place)
        try:
            kernel.bind_mapped(folder, place, users=users.namespace)
            kernel.unmount(place, flags=kernel.MNT_DETACH)
        except OSError as error:
            return f"the kernel, or the file system of {folder}, does not map owners ({error})"
        finally:
            with contextlib.suppress(OSError):
                os.rmdir(place)
    return ""


def shared_users(reason: str) -> str:
    """Return the sentence for a host whose programs run as the machine's own root."""
    return _shared(reason)


def strange_owner(path: str) -> str:
    """Return a sentence if programs cannot own a folder, else ""."""
    with contextlib.suppress(OSError):
        status = os.stat(path)
        if max(status.st_uid, status.st_gid) >= NUM_IDS:
            return (
                f"Files: {path} belongs to user {status.st_uid} and group {status.st_gid}, beyond the {NUM_IDS} that "
                "programs have; they can read there what everybody can, and change what everybody may."
            )
    return ""


def closed_to_others(path: str, *, target: str) -> str:
    """Return a sentence if programs cannot use a folder that keeps its owner, else "".

    Args:
        path: the folder on the machine.
        target: path of the folder in the programs' view.
    """
    with contextlib.suppress(OSError):
        mode = stat.S_IMODE(os.stat(path).st_mode)
        if mode & _OPEN_FOLDER != _OPEN_FOLDER:
            return (
                f"Files: programs can use nothing in {target}, a folder of the interpreter or of its .pth files: its "
                f"mode is {mode:04o}, and programs read there what everybody may. `chmod -R o+rX {target}` opens it."
            )
    return ""


def _shared(reason: str) -> str:
    return (
        "Users: the program runs as root of this machine with fewer rights, and reads every file that its host shows, "
        f"because {reason}."
    )
