"""AWS profiles whose region, keys and address are this service's, for clients that name a profile.

Where: `clary env` writes two files beside the SageMaker configuration, and prints the variables that name them. Clients
find only profiles of these files then. Without the files a named profile is unknown, or is the user's own: clients
prefer the keys of a named profile to those of the environment, and would sign requests to this service with real keys.
The user's own files are neither read nor changed. Names are never removed, because other shells may use them.
Source: AWS SDKs and Tools Reference Guide, "Shared config and credentials files".
"""

from __future__ import annotations

import configparser
import fcntl
import logging
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from clary.base.errors import ClaryError, Fault
from clary.base.whole_files import replace_durably
from clary.contract.launch_plan import Credentials
from clary.control.settings import Settings

_log = logging.getLogger(__name__)

AWS_CONFIG = "aws-config"
AWS_CREDENTIALS = "aws-credentials"
DEFAULT = "default"
_PROFILE = "profile "
_NAME = re.compile(r"[A-Za-z0-9_.@+=:,/~%-]{1,128}")
_KEY_ID, _SECRET = "aws_access_key_id", "aws_secret_access_key"
_OWN_MEMBERS = frozenset({"region", "endpoint_url", "output", _KEY_ID, _SECRET})
_HEAD = "# Written by `clary env`, which replaces changes.\n"


def profile_variables(folder: Path) -> Mapping[str, str]:
    """Return the environment variables by which clients find the files in a folder."""
    return {
        "AWS_CONFIG_FILE": str(folder / AWS_CONFIG),
        "AWS_SHARED_CREDENTIALS_FILE": str(folder / AWS_CREDENTIALS),
    }


def is_profile_name(name: str) -> bool:
    """Whether both files can hold a profile of this name without quotes."""
    return _NAME.fullmatch(name) is not None


def checked_name(name: str) -> str:
    """Return the name of a profile. Raises: ClaryError for one that the files cannot hold."""
    if not is_profile_name(name):
        raise ClaryError(
            f"{name[:150]!a} is no name for a profile: 1 to 128 letters, digits and _ . @ + = : , / ~ % - are expected",
            fault=Fault.USER,
        )
    return name


def write_profiles(
    folder: Path, settings: Settings, *, url: str, credentials: Credentials | None, names: Iterable[str]
) -> None:
    """Write the default profile, the named profiles, and the profiles of earlier calls.

    Args:
        folder: where the files are; it is made if it is missing.
        settings: settings of the service.
        url: URL of the service.
        credentials: key pair of the caller; None leaves keys out of the files.
        names: checked names of profiles.
    Raises: OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        _write(folder, settings, url=url, credentials=credentials, names=names)


def _write(
    folder: Path, settings: Settings, *, url: str, credentials: Credentials | None, names: Iterable[str]
) -> None:
    config, keys = folder / AWS_CONFIG, folder / AWS_CREDENTIALS
    for path in (config, keys):
        _keep_foreign(path, own_id="" if credentials is None else credentials.access_key_id)
    known = {*names, *_names_in(config)} - {DEFAULT}
    profiles = [DEFAULT, *sorted(known)]
    values = {"region": settings.region, "endpoint_url": url, "output": "json"}
    pair = {}
    if credentials is not None:
        pair = {
            _KEY_ID: credentials.access_key_id,
            _SECRET: credentials.secret_access_key,
        }
    _replace(keys, _HEAD + "".join(_section(name, pair) for name in profiles if pair))
    _replace(config, _HEAD + "".join(_section(_titled(name), values) for name in profiles))


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait until no other call of this user writes the files."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # some network file systems lock no folders
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _keep_foreign(path: Path, *, own_id: str) -> None:
    """Copy a file to which another tool has written, such as `aws configure`, before it is replaced.

    Args:
        path: the file; a missing one is no error.
        own_id: access key id of the caller here; another one may be a real key.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return
    members = [(name.strip(), value.strip()) for name, _, value in (line.partition("=") for line in text.splitlines())]
    is_foreign = any(
        (value and name not in _OWN_MEMBERS) or (name == _KEY_ID and value != own_id) for name, value in members
    )
    if not is_foreign:
        return
    kept = path.with_name(f"{path.name}.saved-{time.time_ns()}")
    replace_durably(kept, text.encode())
    _log.warning("another tool has written to %s, which `clary env` replaces; its content is kept in %s", path, kept)


def forget_profiles(folder: Path) -> None:
    """Remove the files with their keys; missing files are no error. Raises: OSError."""
    for name in (AWS_CREDENTIALS, AWS_CONFIG):
        (folder / name).unlink(missing_ok=True)


def _titled(name: str) -> str:
    return name if name == DEFAULT else f"{_PROFILE}{name}"


def _section(title: str, values: Mapping[str, str]) -> str:
    return f"\n[{title}]\n" + "".join(f"{name} = {value}\n" for name, value in values.items())


def _names_in(path: Path) -> Sequence[str]:
    """Return the names of profiles in the file of an earlier call; an empty list if it is missing or damaged."""
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, ValueError):
        return ()
    names = [section.removeprefix(_PROFILE) for section in parser.sections() if section.startswith(_PROFILE)]
    return [name for name in names if is_profile_name(name)]


def _replace(path: Path, text: str) -> None:
    """Replace a file unless it has this text, so that other shells' files and their owner stay as they are."""
    content = text.encode()
    try:
        if path.read_bytes() == content:
            return
    except FileNotFoundError:
        pass
    replace_durably(path, content)
