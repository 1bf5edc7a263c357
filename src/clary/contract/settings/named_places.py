"""Checks of S3 addresses, the code's source and the checkpoint folder, which a request names and agents use.

Where: the service checks a request by these rules on arrival; agents check plans by the same rules before they open
files. Each rule returns the problem, or None. All are pure except `real_folder_problem`, which follows links of the
machine.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import PurePosixPath

from clary.contract.ml_tree import OPT_ML
from clary.contract.settings import hyperparameters as hps

S3_SCHEME = "s3://"
FILE_SCHEME = "file://"

# Wider than S3's own rule, which the store applies: any other character could change the meaning of a URL.
_BUCKET = re.compile(r"[A-Za-z0-9._-]+")
_DOTS = frozenset({".", ".."})
# The first process of a host uses these folders while it builds the host and starts programs; no LocalPath may cover
# them.
_OF_THE_KERNEL = tuple(PurePosixPath("/", name) for name in ("proc", "sys", "dev", "run"))
_SHARED_MEMORY = PurePosixPath("/dev/shm")  # noqa: S108 - an ordinary folder, once it is mounted
# A LocalPath at one of these paths would leave a host without programs, users or settings.
_SYSTEM = frozenset(
    PurePosixPath(path)
    for path in (
        *(f"/{name}" for name in ("bin", "boot", "etc", "lib", "lib32", "lib64", "sbin", "usr")),
        *(f"/usr/{name}" for name in ("bin", "lib", "lib64", "local", "local/bin", "sbin", "share")),
    )
)
_OF_CLARY = OPT_ML / ".clary"
_INPUT = OPT_ML / "input"
_SETTINGS = _INPUT / "config"
_CHECKPOINTS_EXAMPLE, _MIRRORED_EXAMPLE = "/opt/ml/checkpoints", "/opt/ml/output/tensors"


def bucket_problem(bucket: str) -> str | None:
    """Return why a text cannot be a bucket name in a URI."""
    if bucket in _DOTS or not _BUCKET.fullmatch(bucket):
        return "it names no bucket"
    return None


def s3_uri_problem(uri: str) -> str | None:
    """Return why no object can be stored at an address, or below it."""
    if not uri.startswith(S3_SCHEME):
        return "it does not start with s3://"
    bucket, _, key = uri.removeprefix(S3_SCHEME).partition("/")
    if _DOTS.intersection(key.split("/")):
        return "a part of its key is '.' or '..', which the store does not keep"
    return bucket_problem(bucket)


def code_source_problem(source: str) -> str | None:
    """Return why an address cannot be the source of a job's code.

    An agent may be able to read files that the job may not read. So the only paths of the machine that are allowed are
    the job's own.
    """
    if source.startswith(S3_SCHEME):
        problem = s3_uri_problem(source)
        return None if problem is None else f"{hps.SUBMIT_DIRECTORY} is {source[:200]!r}: {problem}."
    path = PurePosixPath(source.removeprefix(FILE_SCHEME))
    if path.is_relative_to(OPT_ML) and ".." not in path.parts and "\0" not in source:
        return None
    return (
        f"{hps.SUBMIT_DIRECTORY} is {source[:200]!r}: expected s3://bucket/key or a path below /opt/ml. No other path "
        "of this machine can be the code of a job; upload the code to S3, or pass it as a channel."
    )


def local_folder(local_path: str) -> PurePosixPath:
    """Return a LocalPath in normalised form."""
    return PurePosixPath("/" * local_path.startswith("/") + posixpath.normpath(local_path).lstrip("/"))


def local_folder_problem(member: str, local_path: str, *, is_mirrored: bool = False) -> str | None:
    """Return a sentence on why a path cannot be a LocalPath, or None if it can be one.

    It must be absolute and must not cover folders that the host itself works with.

    Args:
        member: name of the request's member, such as "CheckpointConfig.LocalPath".
        is_mirrored: whether the whole folder is stored, so that it must contain no input and no files of the system.
    """
    example = _MIRRORED_EXAMPLE if is_mirrored else _CHECKPOINTS_EXAMPLE
    path = local_folder(local_path)
    if not path.is_absolute() or "\0" in local_path:
        reason = "it must be an absolute path"
    elif PurePosixPath(OPT_ML).is_relative_to(path):
        reason = f"it contains /opt/ml itself; choose a separate folder, such as {example}"
    elif any(path.is_relative_to(place) for place in _OF_THE_KERNEL) and not path.is_relative_to(_SHARED_MEMORY):
        reason = f"the host itself uses this folder; choose another folder, such as {example}"
    elif path in _SYSTEM or (is_mirrored and any(path.is_relative_to(place) for place in _SYSTEM)):
        reason = f"it would hide a folder of the system; choose another folder, such as {example}"
    elif path.is_relative_to(_OF_CLARY) or path.is_relative_to(_SETTINGS) or _SETTINGS.is_relative_to(path):
        reason = f"Clary and the job exchange files in it; choose another folder, such as {example}"
    elif is_mirrored and path.is_relative_to(_INPUT):
        reason = f"it contains input of the job; choose another folder, such as {example}"
    else:
        return None
    return f"{member} {local_path[:200]!a} cannot be used: {reason}."


def real_folder_problem(member: str, local_path: str, *, is_mirrored: bool = False) -> str | None:
    """Return the problem of a folder's path after this machine's links are followed, or None.

    For example, /var/run leads to /run. Paths below /opt/ml belong to the host, even if the machine has an /opt/ml. The
    rules are those of `local_folder_problem`; the machine's links lead to the same paths inside hosts.

    Args: as `local_folder_problem`.
    """
    problem = local_folder_problem(member, local_path, is_mirrored=is_mirrored)
    if problem is not None or local_folder(local_path).is_relative_to(OPT_ML):
        return problem
    return local_folder_problem(member, os.path.realpath(local_path), is_mirrored=is_mirrored)
