"""Program of each Slurm step: writes the boot program of a host to its node, then executes it.

Where: `batch_script` carries this file's text, and Slurm runs it as `python3 -I -c TEXT PAYLOAD INDEX` on the node. It
needs only Python 3.10 and its standard library, and no other file of Clary. PAYLOAD is JSON, compressed, in base64. Any
user may write to the node's folder for temporary files, so folders must belong to this user.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import stat
import sys
import tempfile
import time
import zlib
from typing import Any

KEEP_S = 7 * 86400.0  # age after which the output of boots is removed from a node
EXIT_FAILED = 1


def main(arguments: list[str]) -> int:
    """Write the files and replace this process with the boot; return an exit code only if that failed."""
    try:
        order = json.loads(zlib.decompress(base64.b64decode(arguments[0])))
        index = int(arguments[1])
        os.umask(0o077)
        places = (order["scratch"], os.environ.get("SLURM_TMPDIR"), os.environ.get("TMPDIR"), "/tmp")  # noqa: S108
        base = next(place for place in places if place)
        folder = own_folder(base)
        boot = write_once(folder, "boot.py", order["boot"])
        authority = write_once(folder, "ca.pem", order["ca"])
        say_into(log_path(folder, order, index))
        command = [sys.executable, boot, "--service", order["service"], "--ca", authority, "--tag", order["tag"]]
        command += ["--index", str(index), "--proof", "munge", "--scratch", base]
        os.execv(command[0], command)  # noqa: S606
    except (OSError, ValueError, KeyError) as error:
        print(f"clary step: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    return EXIT_FAILED


def own_folder(base: str) -> str:
    """Return this user's folder below `base`. Raises ValueError if another user owns it, or may enter it."""
    os.makedirs(base, exist_ok=True)
    folder = os.path.join(base, f"clary-{os.getuid()}")
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise ValueError(f"{folder} is not a folder of user {os.getuid()} that is closed to others; remove it")
    return folder


def write_once(folder: str, name: str, text: str) -> str:
    """Write a text into a folder unless it is there, and return the file's path, whose name holds the text's digest."""
    data = text.encode()
    path = os.path.join(folder, f"{hashlib.sha256(data).hexdigest()[:16]}-{name}")
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
        if file.read() == data:
            return path
    descriptor, draft = tempfile.mkstemp(dir=folder)
    with open(descriptor, "wb") as file:
        file.write(data)
    os.replace(draft, path)
    return path


def log_path(folder: str, order: dict[str, Any], index: int) -> str:
    """Return the log of boot and agent: in the service's folder if the node sees it, else in the node's `folder`.

    Args:
        folder: folder of the user on this node.
        order: the payload, with the service's folder and the tag.
        index: index of the host.
    """
    name = f"{order['tag']}-{index}.{os.environ.get('SLURM_JOB_ID', '0')}.log"
    with contextlib.suppress(OSError):
        found = os.lstat(order["output"])
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and os.access(order["output"], os.W_OK):
            return os.path.join(order["output"], name)
    logs = os.path.join(folder, "logs")
    os.makedirs(logs, mode=0o700, exist_ok=True)
    for old in os.listdir(logs):
        path = os.path.join(logs, old)
        with contextlib.suppress(FileNotFoundError):
            if time.time() - os.lstat(path).st_mtime > KEEP_S:
                os.unlink(path)
    return os.path.join(logs, name)


def say_into(path: str) -> None:
    """Redirect this process's output to a file: srun, which would forward it, may be lost with its node."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
