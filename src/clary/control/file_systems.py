"""Folders of this machine that jobs may use as file systems (FileSystemDataSource of SageMaker).

Where: `settings` checks `[file_systems]` when it reads the file, admission checks the file systems of a request when a
job is created, and planning fills the folder in. The agent opens the folder again when it creates the host
(`agent.host.mounts.bind_places`).

The creator of a job chooses FileSystemId and DirectoryPath, and the agent binds the folder with its own rights. So only
folders of the settings are available, paths below them are opened without following links, and a folder that holds the
service's state folder, or lies in it, is always refused.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from clary.base.beneath import Folder, parts_of
from clary.base.errors import ContractError, Fault, WireError
from clary.base.mounted_places import shown_at
from clary.contract.launch_plan import Channel

READ_ONLY = "ro"
READ_WRITE = "rw"
_KEYS = ("path", "access")
_ID = re.compile("fs-[0-9a-f]{8,18}")  # pattern of FileSystemId in the API, which also demands 11 to 21 characters
_LUSTRE = "FSxLustre"
_KERNEL_FOLDERS = ("/proc", "/sys", "/dev")

# Errors of a folder that another machine may have nevertheless.
_NOT_HERE = (errno.ENOENT, errno.EACCES, errno.ESTALE, errno.EIO, errno.ENOTCONN, errno.EHOSTDOWN)

FileSystems = Mapping[str, Mapping[str, Any]]  # setting `file_systems`


def check_entry(file_system_id: str, entry: Mapping[str, Any], *, source: str) -> None:
    """Refuse an entry of the settings with an invalid FileSystemId, an unknown key, or an invalid path or access.

    Args:
        file_system_id: name of the entry.
        entry: keys and values of the entry.
        source: file that contains the entry, named in the error.
    Raises: ContractError naming file, entry and key, with the expected and the actual value.
    """
    if not _ID.fullmatch(file_system_id):
        raise _wrong(source, file_system_id, "a name like fs-0123456789abcdef0, which clients send", "another name")
    unknown = [key for key in entry if key not in _KEYS]
    if unknown:
        raise _wrong(source, f"{file_system_id}.{unknown[0]}", f"one of {', '.join(_KEYS)}", "an unknown key")
    path = entry.get("path")
    if not isinstance(path, str) or not path.startswith("/") or "\0" in path:
        raise _wrong(source, f"{file_system_id}.path", "an absolute path of this machine", repr(path))
    access = entry.get("access", READ_ONLY)
    if access not in (READ_ONLY, READ_WRITE):
        raise _wrong(source, f"{file_system_id}.access", f"{READ_ONLY} or {READ_WRITE}", repr(access))


def folder_below(directory_path: str, file_system_type: str) -> str:
    """Return the part of DirectoryPath below the entry's folder.

    The first part of a path of FSx for Lustre is the mount name of the file system, which is not a folder.
    """
    parts = [part for part in directory_path.split("/") if part not in ("", ".")]
    return "/".join(parts[1:] if file_system_type == _LUSTRE else parts)


def located(channel: Channel, file_systems: FileSystems) -> Channel:
    """Return a channel with the folder of its file system filled in; a channel of another source is unchanged. Pure.

    Raises: WireError(ValidationException) for a file system that the settings lack, or that the channel would write
        though the settings allow only reading.
    """
    if channel.file_system_id is None:
        return channel
    entry = file_systems.get(channel.file_system_id)
    if entry is None:
        raise _refused(
            channel,
            "the settings of this service name no such file system. To let jobs have a folder of this machine, add "
            f'[file_systems] and below it the line "{channel.file_system_id}" = {{ path = "/the/folder", '
            f'access = "{channel.file_system_access}" }} to settings.toml in the state folder, and start the service '
            "again",
        )
    if channel.file_system_access == READ_WRITE and entry.get("access", READ_ONLY) != READ_WRITE:
        raise _refused(
            channel,
            f"FileSystemAccessMode is {READ_WRITE}, and jobs may only read it. Ask for {READ_ONLY}, or set "
            f'access = "{READ_WRITE}" for "{channel.file_system_id}" below [file_systems] in settings.toml and start '
            "the service again",
        )
    return replace(channel, file_system_path=str(entry["path"]))


def require_folder(channel: Channel, *, home: Path, is_here: bool = True) -> None:
    """Check that the folder of a located channel exists, and shows nothing of the state folder or of the kernel.

    Args:
        home: the state folder.
        is_here: whether hosts run on this machine. If not, a folder that cannot be opened here is accepted: agents open
            it on their machines.
    Raises: WireError(ValidationException).
    """
    if channel.file_system_path is None:
        return
    path = channel.file_system_path
    try:
        parts_of(channel.file_system_folder)
        with Folder.at(path) as top:
            if top.holds(home) or top.lies_in(home):
                raise _refused(
                    channel,
                    f"its folder {path} holds the state folder of the service or lies in it. The state "
                    f"folder contains the keys of all jobs. Name another path for "
                    f'"{channel.file_system_id}" below [file_systems] in settings.toml',
                )
            if (point := shown_at(path, home)) is not None:
                raise _refused(
                    channel,
                    f"a part of the state folder of the service, or a folder that holds it, is mounted at {point}, "
                    f"below its folder {path}. The state folder contains the keys of all jobs. Unmount it, or name "
                    f'another path for "{channel.file_system_id}" below [file_systems] in settings.toml',
                )
            if any(top.lies_in(folder) for folder in _KERNEL_FOLDERS):
                raise _refused(channel, f"its folder {path} belongs to the kernel; name another one in settings.toml")
            with top.folder(channel.file_system_folder) as folder:
                if folder.holds(home) or folder.lies_in(home):  # by a mount below the entry's folder
                    raise _refused(channel, f"{channel.file_system_folder!a} holds the state folder or lies in it")
    except OSError as error:
        if not is_here and error.errno in _NOT_HERE:
            return
        raise _refused(
            channel,
            f"DirectoryPath names {channel.file_system_folder or '/'!a} below {path} of this machine, and "
            f"this folder cannot be opened: {error.strerror}. Name a folder that is there, by a path "
            "without links and without '..'",
        ) from error


def _refused(channel: Channel, reason: str) -> WireError:
    return WireError(
        "ValidationException", f"Channel {channel.name!r}: FileSystemId {channel.file_system_id}: {reason}."
    )


def _wrong(source: str, name: str, expected: str, got: str) -> ContractError:
    return ContractError(f"{source}: file_systems.{name}: expected {expected}, got {got}", fault=Fault.USER)
