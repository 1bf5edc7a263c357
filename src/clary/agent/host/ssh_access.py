"""ssh between the hosts of one attempt, as in SageMaker's containers: root logs in as root without a password.

Where: the supervisor calls it before it starts a program that may start processes by ssh: mpirun across hosts, SDK v3's
MPI driver, the toolkit, a script whose code names sshd. The program starts sshd by itself; this module provides the
files for sshd and its clients. An attempt has one key pair of users and one of hosts; both lie in its work folder,
which programs of other jobs do not see. The files cover the machine's own /etc/ssh and /root/.ssh, which stay
unchanged. sshd listens only inside the job's network, because the host has no other network.
Source: sshd(8), sshd_config(5), ssh_config(5); sagemaker 3 `mpi_utils`, sagemaker-training 5.1.4 `mpi`.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from clary.agent.host.sandbox import Bind
from clary.agent.small_files import names_in, read_start
from clary.base.errors import AgentError, Fault
from clary.base.limited_runs import RunTooLong, run_limited

SSHD = "/usr/sbin/sshd"  # path where both of AWS's launchers search for sshd
_PROGRAM_PATH = "/usr/local/bin:/usr/bin:/bin"
_CLIENT_PROGRAMS = ("ssh", "ssh-keygen")
_KEYGEN_LIMIT_S = 30.0  # normally milliseconds, but longer on an overloaded machine
_USER_KEY, _HOST_KEY = "user_key", "host_key"
_IDENTITY = "id_ed25519"  # a name that ssh and paramiko try by default
_HOST_KEY_PLACE = "/etc/ssh/ssh_host_ed25519_key"
_STARTS_SSHD = re.compile(rb"""\bsshd\b|\bservice[\s"',]+ssh\b|/init\.d/ssh\b""")
_CODE_ENDINGS = (".py", ".sh")
_MAX_CODE_FILES = 200
_MAX_CODE_BYTES = 1 << 20  # of one file
_MAX_CODE_DEPTH = 3  # folders below each other
# StrictModes would check the mode of the machine's own /root. PAM loads /etc/environment into sessions, to which AWS's
# launchers write the whole environment; these PAM rules work in a host.
_SSHD_CONFIG = f"""\
HostKey {_HOST_KEY_PLACE}
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
AuthorizedKeysFile .ssh/authorized_keys
StrictModes no
UsePAM yes
PrintMotd no
PrintLastLog no
X11Forwarding no
MaxStartups 200
Subsystem sftp internal-sftp
"""
_PAM_RULES = """\
auth required pam_deny.so
account required pam_permit.so
password required pam_deny.so
session required pam_permit.so
session optional pam_env.so
"""
# The job's hosts are listed in ssh_known_hosts; keys of other addresses in its network are accepted at first contact.
_SSH_CONFIG = """\
Host *
    StrictHostKeyChecking accept-new
    PasswordAuthentication no
    LogLevel ERROR
"""


def why_no_ssh(*, has_user_namespace: bool, has_own_network: bool = True) -> str | None:
    """Return None if hosts can reach each other by ssh, else the reason why not.

    Args:
        has_user_namespace: whether hosts live in a user namespace that the engine made.
        has_own_network: whether hosts have their own network, not the network of their nodes.
    """
    if not has_own_network:
        return "they share the network of their nodes, where port 22 is not theirs; use torchrun, or SDK v2's mpi"
    if has_user_namespace or os.geteuid() != 0:
        return "sshd has to change users, and hosts that are started without root know one user only"
    missing = [name for name in _CLIENT_PROGRAMS if shutil.which(name, path=_PROGRAM_PATH) is None]
    if not os.access(SSHD, os.X_OK):
        missing.append(SSHD)
    if missing:
        return f"this machine has no {', '.join(missing)}; on Debian install openssh-server and openssh-client"
    return None


def names_sshd(root: Path, code: tuple[str, ...]) -> bool:
    """Whether a program's code starts sshd by itself, judged by the text of its first files and their folders.

    Args:
        root: of the program's tree.
        code: parts of the path of the code's folder below `root`.
    """
    files = _code_files(root, code, depth=1)
    for place in (place for _, place in zip(range(_MAX_CODE_FILES), files, strict=False)):
        if _STARTS_SSHD.search(read_start(root, place, max_bytes=_MAX_CODE_BYTES) or b""):
            return True
    return False


def _code_files(root: Path, folder: tuple[str, ...], *, depth: int) -> Iterator[tuple[str, ...]]:
    names = sorted(names_in(root, folder))
    yield from ((*folder, name) for name in names if name.endswith(_CODE_ENDINGS))
    for name in names if depth < _MAX_CODE_DEPTH else ():
        if "." not in name:  # no file with an ending, and no hidden folder
            yield from _code_files(root, (*folder, name), depth=depth + 1)


def prepare_ssh(
    shared_folder: Path, host_folder: Path, *, addresses: Mapping[str, str], home: str | None = None
) -> tuple[Bind, ...]:
    """Write a host's files for ssh; return the binds for the host.

    Args:
        shared_folder: folder shared by all hosts of the attempt; the first host creates the keys in it.
        host_folder: existing private folder of this host.
        addresses: host name -> address, of all hosts of the attempt.
        home: HOME of the program, if it differs from the user database; paramiko uses HOME, ssh does not.

    Raises:
        AgentError: the keys could not be made.
        OSError: a file could not be written.
    """
    keys = _ensure_keys(shared_folder)
    folder = host_folder / "ssh"
    shutil.rmtree(folder, ignore_errors=True)
    system, user, run, pam = (folder / name for name in ("etc", "user", "run", "pam"))
    folder.mkdir(mode=0o700)
    for place, mode in ((system, 0o755), (user, 0o700), (run, 0o755)):
        place.mkdir()
        place.chmod(mode)
    host_public = (keys / f"{_HOST_KEY}.pub").read_text(encoding="ascii")
    names = ",".join((*addresses, *dict.fromkeys(addresses.values()), "localhost", "127.0.0.1", "::1"))
    known_hosts = f"{names} {host_public}"
    host_key_name = os.path.basename(_HOST_KEY_PLACE)
    _write(system / "sshd_config", _SSHD_CONFIG)
    _write(system / "ssh_config", _SSH_CONFIG)
    _write(system / "ssh_known_hosts", known_hosts)
    _write(system / host_key_name, (keys / _HOST_KEY).read_text(encoding="ascii"), mode=0o600)
    _write(system / f"{host_key_name}.pub", host_public)
    user_public = (keys / f"{_USER_KEY}.pub").read_text(encoding="ascii")
    _write(user / _IDENTITY, (keys / _USER_KEY).read_text(encoding="ascii"), mode=0o600)
    _write(user / f"{_IDENTITY}.pub", user_public)
    _write(user / "authorized_keys", user_public, mode=0o600)
    _write(user / "known_hosts", known_hosts)  # the only file that paramiko reads
    _write(user / "config", _SSH_CONFIG, mode=0o600)
    _write(pam, _PAM_RULES)
    homes = dict.fromkeys([pwd.getpwuid(0).pw_dir, *([home] if home and os.path.isabs(home) else [])])
    return (
        Bind(source=str(system), target="/etc/ssh"),
        Bind(source=str(run), target="/run/sshd"),
        Bind(source=str(pam), target="/etc/pam.d/sshd"),
        *(Bind(source=str(user), target=f"{path}/.ssh") for path in homes),
    )


def _ensure_keys(shared_folder: Path) -> Path:
    """Return the folder with the attempt's keys, created on first use.

    No lock is needed: each host renames a complete folder into place, which succeeds only for the first host.
    """
    keys = shared_folder / "keys"
    if keys.is_dir():
        return keys
    shared_folder.mkdir(mode=0o700, exist_ok=True)
    own = Path(tempfile.mkdtemp(prefix="making-", dir=shared_folder))
    try:
        for name in (_USER_KEY, _HOST_KEY):
            _make_key(own / name)
        with contextlib.suppress(OSError):
            own.rename(keys)
    finally:
        shutil.rmtree(own, ignore_errors=True)
    if not keys.is_dir():
        raise AgentError(f"keys for ssh between hosts could not be put at {keys}", fault=Fault.INFRASTRUCTURE)
    return keys


def _make_key(path: Path) -> None:
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "root@this-job", "-f", str(path)]
    try:
        done = run_limited(command, limit_s=_KEYGEN_LIMIT_S, variables={"PATH": _PROGRAM_PATH})
    except RunTooLong as error:
        raise AgentError(
            f"ssh-keygen took longer than {_KEYGEN_LIMIT_S:g} s to make a key", fault=Fault.INFRASTRUCTURE
        ) from error
    if done.code != 0:
        said = (done.errors or done.output).strip()[-500:]
        raise AgentError(
            f"ssh-keygen made no key for ssh between hosts, exit code {done.code}: {said}",
            fault=Fault.INFRASTRUCTURE,
        )


def _write(path: Path, text: str, *, mode: int = 0o644) -> None:
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, mode)
    with open(descriptor, "w", encoding="ascii") as file:
        os.fchmod(descriptor, mode)  # despite the umask
        file.write(text)
