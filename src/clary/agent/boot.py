"""Starts the agent of one host on a machine that the service does not run on: `python boot.py --service URL ...`.

Where: a cluster's scheduler or, on a box, the keeper of a lease runs it once per host. This file needs only Python
3.10 and its standard library, and no other file of Clary. It connects to the service, authenticates, reports the facts
of the machine, fetches the agent's bundle by its digest, and executes the agent in the same process. Its child process
forwards connections of agent and program from 127.0.0.1 to the service over TLS. If the service answers 410, no job
needs this host, and the boot exits.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import errno
import fcntl
import hashlib
import http.client
import io
import json
import os
import re
import secrets
import signal
import socket
import ssl
import stat
import struct
import subprocess
import sys
import time
import urllib.parse
import zipfile
from collections.abc import Iterator
from typing import Any

SILENCE_LIMIT_S = 600.0  # without an answer from the service before this host gives up
REQUEST_TIMEOUT_S = 60.0
# time for which the service may delay its answer to a request for enrolment: it answers earlier only if it has news
WAIT_S = 20.0
PROGRAM_TIMEOUT_S = 15.0  # of munge and nvidia-smi
_KILLED_S = 2.0  # for a killed program to end
LOCK_LIMIT_S = 10.0  # for other boots of this node that check the same code
MAX_BUNDLE_BYTES = 256 * 1024 * 1024
MAX_ANSWER_BYTES = 1024 * 1024
COPY_BYTES = 256 * 1024
EXIT_UNWANTED = 0  # no job needs this host, which is not an error
EXIT_FAILED = 1
_SIOCGIFADDR, _SIOCGIFNETMASK = 0x8915, 0x891B
_CLONE_NEWNS, _CLONE_NEWUSER, _CLONE_NEWPID, _CLONE_NEWUTS = 0x00020000, 0x10000000, 0x20000000, 0x04000000
_PR_SET_PDEATHSIG = 1
_MS_REC_PRIVATE = 0x4000 | 0x40000
# Prefixes of variables that engines and their daemons set for themselves; jobs' programs do not get them.
_WITHHELD = ("SLURM", "SBATCH_", "SRUN_", "PMI", "CLARY_", "AWS_", "CUDA_VISIBLE", "GPU_DEVICE", "ROCR_", "PYTHON")


class Unwanted(Exception):
    """The service does not want this host."""


class Failed(Exception):
    """This host cannot be started; the message has the reason."""


class Outdated(Exception):
    """The service now has another bundle, because another release of the service was started meanwhile."""


def main() -> int:
    """Enrol, and become the agent; return an exit code if the agent is not started."""
    options = _options()
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(EXIT_FAILED))  # no work is running yet that could be lost
    try:
        service = Service(options.service, options.ca)
        folder = _own_folder(options.scratch, options.tag, options.index)
        report = node_report(service, folder)
        answer, code = admission(service, options, report, folder)
        _become_agent(options, service, answer, report, folder, code)
    except Unwanted as error:
        print(f"clary boot: leaving: {error}", file=sys.stderr, flush=True)
        return EXIT_UNWANTED
    except (Failed, OSError, ValueError, KeyError) as error:
        is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        remedy = f"; free space at {_base_folder(options.scratch)}" if is_full else ""
        print(f"clary boot: {type(error).__name__}: {error}{remedy}", file=sys.stderr, flush=True)
        return EXIT_FAILED
    return EXIT_FAILED


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Become the agent of one host.")
    parser.add_argument("--service", required=True, help="https://HOST:PORT of the service")
    parser.add_argument("--ca", required=True, help="file of the authority that signed the service's certificate")
    parser.add_argument("--tag", required=True, help="allocation that the host belongs to")
    parser.add_argument("--index", required=True, type=int, help="number of the host, from 0")
    parser.add_argument("--proof", required=True, help="munge, or file:PATH of a token")
    parser.add_argument("--scratch", default="", help="folder for what the host needs while it lives")
    options = parser.parse_args()
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", options.tag) or not 0 <= options.index < 100_000:
        parser.error("--tag takes letters, digits, - and _; --index takes 0 to 99999")
    return options


class Service:
    """Client of the service over TLS; only certificates of the pinned authority are accepted."""

    def __init__(self, url: str, ca: str) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme != "https" or not parts.hostname:
            raise Failed(f"--service: expected https://HOST:PORT, got {url!r}")
        self.host, self.port = parts.hostname, parts.port or 443
        self.context = ssl.create_default_context(cafile=ca)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2

    def address(self) -> str:
        """Return this machine's address on the route to the service; retry while unreachable. Raises: Failed."""
        patience = Patience(self)
        while True:
            try:
                return self._address_now()
            except ssl.SSLCertVerificationError:
                raise
            except OSError as error:
                patience.wait(str(error))

    def _address_now(self) -> str:
        with socket.create_connection((self.host, self.port), timeout=REQUEST_TIMEOUT_S) as connection:
            return str(connection.getsockname()[0])

    def ask(self, method: str, path: str, body: bytes | None, most_bytes: int) -> tuple[int, bytes]:
        """Send one request; return status and body.

        Args:
            method: GET or POST.
            path: below the service's URL.
            body: JSON, or None.
            most_bytes: limit of the answer's size.
        Raises: OSError if the answer is missing or incomplete; Failed if it is longer than `most_bytes`.
        """
        connection = http.client.HTTPSConnection(self.host, self.port, timeout=REQUEST_TIMEOUT_S, context=self.context)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
            answer = connection.getresponse()
            data = answer.read(most_bytes + 1)
            if len(data) > most_bytes:
                raise Failed(f"the answer to {method} {path} is larger than {most_bytes} bytes")
            if answer.length:  # http.client detects a short body only in a read() without a size
                raise ConnectionError(f"the answer to {method} {path} ended {answer.length} bytes early")
            return answer.status, data
        except http.client.HTTPException as error:
            raise ConnectionError(f"{type(error).__name__}: {error}") from error  # the service exited meanwhile
        finally:
            connection.close()


class Patience:
    """Backoff while the service is unreachable; raises `Failed` after SILENCE_LIMIT_S."""

    def __init__(self, service: Service) -> None:
        self._name = f"{service.host}:{service.port}"
        self.heard()

    def heard(self) -> None:
        """Reset the backoff, because the service has answered."""
        self._heard_s, self._pause_s = time.monotonic(), 0.2

    def wait(self, why: str) -> None:
        """Wait before the next request. Raises: Failed."""
        if time.monotonic() - self._heard_s > SILENCE_LIMIT_S:
            raise Failed(f"no answer from {self._name} for {SILENCE_LIMIT_S:g} s: {why[:200]}")
        time.sleep(self._pause_s)
        self._pause_s = min(5.0, 2 * self._pause_s)


def admission(
    service: Service, options: argparse.Namespace, report: dict[str, Any], folder: str
) -> tuple[dict[str, Any], str]:
    """Return the service's answer to this host and the folder of the agent's code; repeat an outdated request.

    Args:
        service: client of the service.
        options: of the command line: tag, index and proof.
        report: of this node.
        folder: of this host.
    Raises: Unwanted if no job needs this host; Failed after SILENCE_LIMIT_S without an answer that names an available
    bundle.
    """
    claim, patience = secrets.token_hex(16), Patience(service)
    while True:
        answer = enrol(service, options, {"claim": claim, "report": report}, folder)
        try:
            return answer, _bundle(service, answer["bundle"], folder)
        except Outdated as error:
            patience.wait(str(error))


def enrol(service: Service, options: argparse.Namespace, own: dict[str, Any], folder: str) -> dict[str, Any]:
    """Poll the service until the gang is complete; return its answer. The bundle is fetched meanwhile.

    Args:
        service: client of the service.
        options: of the command line: tag, index and proof.
        own: `claim` and `report` of this boot.
        folder: of this host.
    Raises: Unwanted if no job needs this host; Failed after SILENCE_LIMIT_S without an answer 200 or 202.
    """
    path = f"/clary/v1/allocations/{options.tag}/{options.index}"
    question = {**own, "wait_s": 0.0}
    patience = Patience(service)
    while True:
        body = json.dumps({**question, "proof": _proof(options)}).encode()
        try:
            status, data = service.ask("POST", path, body, MAX_ANSWER_BYTES)
        except OSError as error:
            status, data = 503, str(error).encode()
        if status == 200:
            answer: dict[str, Any] = json.loads(data)
            return answer
        if status == 202:
            patience.heard()
            with contextlib.suppress(Outdated):  # the next answer names the current bundle
                _bundle(service, json.loads(data)["bundle"], folder, is_final=False)
            question["wait_s"] = WAIT_S
            continue
        if status == 410:
            raise Unwanted(data.decode("utf-8", "replace")[:300])
        patience.wait(repr(data[:200]))


def _proof(options: argparse.Namespace) -> str:
    if options.proof.startswith("file:"):
        with open(options.proof[5:], encoding="ascii") as file:
            return file.read().strip()
    if options.proof != "munge":
        raise Failed(f"--proof: expected munge or file:PATH, got {options.proof!r}")
    code, output, errors = _run_limited(["munge", "--string", f"{options.tag} {options.index}", "--ttl", "300"])
    if code:
        raise Failed(f"munge: {errors[:300]!r}")
    return output.decode("ascii").strip()


def _base_folder(scratch: str) -> str:
    places = (scratch, os.environ.get("SLURM_TMPDIR"), os.environ.get("TMPDIR"), "/tmp")  # noqa: S108 - `_own_folder` checks
    return next(place for place in places if place)


def _own_folder(scratch: str, tag: str, index: int) -> str:
    """Make this host's private folder on this node; remove the folders of ended hosts."""
    base = _base_folder(scratch)
    top = os.path.join(base, f"clary-{os.getuid()}")
    os.makedirs(base, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.mkdir(top, 0o700)
    found = os.lstat(top)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise Failed(f"{top} is not a folder of user {os.getuid()} that is closed to others; remove it")
    node = os.path.join(top, socket.gethostname())
    hosts = os.path.join(node, "hosts")
    os.makedirs(hosts, mode=0o700, exist_ok=True)
    _remove_ended(hosts)
    folder = os.path.join(hosts, f"{tag}-{index}-{os.getpid()}")
    os.mkdir(folder, 0o700)
    with open(os.path.join(folder, "owner"), "w", encoding="ascii") as file:
        file.write(f"{os.getpid()} {_start_time(os.getpid())} {_boot_id()}")
    return folder


def _remove_ended(hosts: str) -> None:
    for name in os.listdir(hosts):
        folder = os.path.join(hosts, name)
        try:
            if _has_ended(folder):
                _remove_folder(folder)
        except OSError:  # too many open files, for example: this says nothing about the host, which may live
            continue


def _remove_folder(path: str) -> None:
    """Remove a folder and all below it, without following a link; it is `base.tree_removal` in short.

    Programs nest folders as deep as they like, and overlayfs leaves folders of mode 0 when a host is killed: each is
    made accessible, and those below the second level are moved up first, so that nothing recurses. What is mounted
    below it stays.

    Raises: OSError if something of it stays.
    """
    home = _opened_up(path, None)
    try:
        waiting, num_moved = os.listdir(home), 0
        while waiting:
            name = waiting.pop()
            with contextlib.suppress(OSError):
                if _is_removed(name, home):
                    continue
                here = _opened_up(name, home)
                try:
                    for inner in os.listdir(here):
                        with contextlib.suppress(OSError):
                            if _is_removed(inner, here):
                                continue
                            os.close(_opened_up(inner, here))  # a moved folder has to be writable: its ".." changes
                            aside = f".removed-{secrets.token_hex(4)}-{num_moved}"
                            num_moved += 1
                            os.rename(inner, aside, src_dir_fd=here, dst_dir_fd=home)
                            waiting.append(aside)
                finally:
                    os.close(here)
                os.rmdir(name, dir_fd=home)
    finally:
        os.close(home)
    os.rmdir(path)


def _is_removed(name: str, parent: int) -> bool:
    """Remove an entry, and return True, unless it is a folder with content. Raises: OSError, also for a mount point."""
    if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=parent)
        return True
    try:
        os.rmdir(name, dir_fd=parent)  # of an empty folder of another user, too, which could be neither read nor moved
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise
        return False
    return True


def _opened_up(name: str, parent: int | None) -> int:
    """Open a folder after giving its owner all permissions; return its descriptor. Raises: OSError."""
    look = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        with contextlib.suppress(OSError):
            os.chmod(f"/proc/self/fd/{look}", stat.S_IRWXU)
        return os.open(f"/proc/self/fd/{look}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(look)


def _has_ended(folder: str) -> bool:
    """Whether the process that made a host's folder has ended. Raises: OSError if this cannot be found out now."""
    try:
        with open(os.path.join(folder, "owner"), encoding="ascii") as file:
            pid, started, boot = file.read().split()
        return boot != _boot_id() or _start_time(int(pid)) != started
    except (FileNotFoundError, NotADirectoryError, ValueError):
        # Another boot may be creating this folder right now.
        return time.time() - os.lstat(folder).st_mtime >= REQUEST_TIMEOUT_S


def _boot_id() -> str:
    """Return the id of this boot of the machine. Raises: OSError if it cannot be read at the moment."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except (FileNotFoundError, PermissionError):
        return "unknown"


def _start_time(pid: int) -> str:
    """Return the start of a process in ticks since the machine's start; empty if it has ended.

    Raises: OSError if this cannot be read at the moment.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[19].decode()
    except (FileNotFoundError, ProcessLookupError, PermissionError, IndexError):
        return ""


def node_report(service: Service, folder: str) -> dict[str, Any]:
    """Return the facts of this node, as `contract.enrolment.NodeReport` in plain form."""
    isolation, why = _isolation()
    return {
        "node": socket.gethostname()[:255],
        "addresses": _addresses(),
        "used_address": service.address(),
        "num_cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": _memory_bytes(),
        "gpus": _gpus(),
        "isolation": isolation,
        "isolation_why": why[:300],
        "python_version": ".".join(map(str, sys.version_info[:3])),
        "scratch": folder,
        "free_port": _free_port(),
    }


def _addresses() -> list[dict[str, Any]]:
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                address = socket.inet_ntoa(fcntl.ioctl(asking, _SIOCGIFADDR, request)[20:24])
                mask = struct.unpack("!I", fcntl.ioctl(asking, _SIOCGIFNETMASK, request)[20:24])[0]
            except OSError:
                continue  # the interface has no address of this family
            if address.startswith("127."):
                continue
            speed = 0
            with contextlib.suppress(OSError, ValueError), open(f"/sys/class/net/{name}/speed") as file:
                speed = max(0, int(file.read()))
            found.append(
                {"interface": name, "address": address, "prefix_length": bin(mask).count("1"), "speed_mbit_s": speed}
            )
    return found[:64]


def _memory_bytes() -> int:
    """Return the memory that this host may use: the smallest limit of machine, cgroups and allocation."""
    with open("/proc/meminfo", encoding="ascii") as file:
        sizes = [int(file.readline().split()[1]) * 1024]
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError), open(name, encoding="ascii") as file:
            sizes.append(int(file.read()))
    with contextlib.suppress(KeyError, ValueError):
        sizes.append(int(os.environ["SLURM_MEM_PER_NODE"]) << 20)
    return min(size for size in sizes if size > 0)


def _gpus() -> list[dict[str, Any]]:
    """Return the GPUs that the variables of this process's allocation name, or all GPUs if no variable is set.

    A Slurm job whose variables name no GPU gets none.
    """
    given = next(
        (
            os.environ[name]
            for name in ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "CUDA_VISIBLE_DEVICES")
            if name in os.environ
        ),
        None,
    )
    if "SLURM_JOB_ID" in os.environ and "SLURM_STEP_GPUS" not in os.environ and "SLURM_JOB_GPUS" not in os.environ:
        # without GPUs of its own, a component of a Slurm job inherits CUDA_VISIBLE_DEVICES of another component
        return []
    known = {}
    with contextlib.suppress(OSError, Failed):
        code, output, _ = _run_limited(["nvidia-smi", "--query-gpu=index,uuid", "--format=csv,noheader"])
        for line in output.decode(errors="replace").splitlines() if code == 0 else ():
            index, _, uuid = line.partition(",")
            known[index.strip()] = uuid.strip()
    if given is None:
        return [{"index": int(index), "uuid": uuid} for index, uuid in known.items()][:256]
    by_uuid = {uuid: index for index, uuid in known.items()}
    wanted = [by_uuid.get(word.strip(), word.strip()) for word in given.split(",")]
    return [{"index": int(word), "uuid": known.get(word, "")} for word in wanted if word.isdigit()][:256]


def _run_limited(command: list[str]) -> tuple[int, bytes, bytes]:
    """Run a program; return exit code, output and error output. Raises: OSError; Failed after PROGRAM_TIMEOUT_S.

    It is `base.limited_runs` in short: a program that hangs in the kernel does not end by SIGKILL, and is left.
    """
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        output, errors = process.communicate(timeout=PROGRAM_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_KILLED_S)
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        raise Failed(f"{command[0]} did not end within {PROGRAM_TIMEOUT_S:g} s") from None
    return process.returncode, output, errors


def _isolation() -> tuple[str, str]:
    """Create namespaces in a child; return "namespaces", or "processes" and the reason of the failure."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        why = "this kernel allows no namespaces"
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            user = 0 if os.geteuid() == 0 else _CLONE_NEWUSER
            wanted = user | _CLONE_NEWNS | _CLONE_NEWPID | _CLONE_NEWUTS
            if libc.unshare(wanted) or libc.mount(b"none", b"/", None, _MS_REC_PRIVATE, None):
                why = f"unshare: {os.strerror(ctypes.get_errno())}"
            else:
                why = ""
        finally:
            os.write(writing, why.encode()[:300])
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answers:
        why = answers.read().decode()
    os.waitpid(child, 0)
    return ("processes" if why else "namespaces"), why


def _free_port() -> int:
    """Return 7777, which clients expect, or another free port if 7777 is in use."""
    for port in (7777, 0):
        with contextlib.suppress(OSError), socket.socket() as trying:
            trying.bind(("", port))
            return int(trying.getsockname()[1])
    raise Failed("this node has no free port")


def _bundle(service: Service, digest: str, folder: str, *, is_final: bool = True) -> str:
    """Return the folder of the agent's code, with exactly the content of the bundle. Raises: Failed, Outdated.

    The bundle is fetched if this node lacks it. The folder outlives hosts, and in plain processes programs have this
    user's rights: what they have changed there must not run with the tokens of the next host. So each boot compares the
    folder with the archive, which its digest proves: 1,100 files of 9 MB take 0.15 s. If the folder cannot be made
    equal to the archive, this host gets a copy of its own.

    Args:
        service: client of the service.
        digest: of the bundle.
        folder: of this host.
        is_final: whether the code is to run now; otherwise it is only fetched and unpacked, if this node lacks it.
    """
    if not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise Failed(f"the service named no valid digest of a bundle: {digest[:80]!r}")
    place = os.path.join(os.path.dirname(os.path.dirname(folder)), "agent")
    target = os.path.join(place, digest)
    if not is_final and os.path.isdir(target):
        return target
    os.makedirs(place, mode=0o700, exist_ok=True)
    data = _kept_archive(target + ".zip", digest)
    if data is None:
        data = _fetched(service, digest)
        _keep_archive(data, target)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:  # verified by its digest
        try:
            with _alone(place):
                if not os.path.lexists(target):
                    _unpack(archive, target)
                changed = _restore(archive, target) if is_final else []
        except OSError as error:
            print(f"clary boot: {target} cannot be restored: {error}; this host unpacks its own", file=sys.stderr)
            target = os.path.join(folder, "agent", digest)
            if not os.path.isdir(target):
                os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
                _unpack(archive, target)
            return target
    if changed:
        told = ", ".join(sorted(changed)[:5])
        print(
            f"clary boot: something has changed {target}; {len(changed)} entries are restored: {told}",
            file=sys.stderr,
            flush=True,
        )
    return target


@contextlib.contextmanager
def _alone(place: str) -> Iterator[None]:
    """Wait until no other boot of this node changes the folder. Raises: OSError after LOCK_LIMIT_S."""
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        end_s = time.monotonic() + LOCK_LIMIT_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= end_s:
                    raise OSError(f"another process has held its lock for {LOCK_LIMIT_S:g} s") from None
                time.sleep(0.02)
            except OSError:
                break  # NFS locks no folders; boots at the same time then repeat a part of each other's work
        yield
    finally:
        os.close(descriptor)


def _kept_archive(path: str, digest: str) -> bytes | None:
    """Return the archive of an earlier boot; None if it is missing or is not the one of this digest."""
    try:
        # A program may have put a pipe or a link in its place.
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None
            data = file.read(MAX_BUNDLE_BYTES)
    except OSError:
        return None
    return data if hashlib.sha256(data).hexdigest() == digest else None


def _keep_archive(data: bytes, target: str) -> None:
    draft = f"{target}.{os.getpid()}.zip"
    try:
        with open(draft, "wb") as file:
            file.write(data)
        os.replace(draft, target + ".zip")
    except OSError as error:  # the next boot fetches it again
        print(f"clary boot: {target}.zip was not written: {error}", file=sys.stderr, flush=True)
        with contextlib.suppress(OSError):
            os.unlink(draft)


def _fetched(service: Service, digest: str) -> bytes:
    """Return the archive from the service. Raises: Failed, Outdated."""
    patience = Patience(service)
    while True:
        try:
            status, data = service.ask("GET", "/clary/v1/agent/" + digest, None, MAX_BUNDLE_BYTES)
        except OSError as error:
            status, data = 503, str(error).encode()
        if status < 500:
            break
        patience.wait(repr(data[:200]))
    if status == 404:
        raise Outdated(f"the service has no bundle {digest}")
    if status != 200 or hashlib.sha256(data).hexdigest() != digest:
        raise Failed(f"the bundle {digest} was not received intact: status {status}, {len(data)} bytes")
    return data


def _unpack(archive: zipfile.ZipFile, target: str) -> None:
    draft = f"{target}.{os.getpid()}"
    archive.extractall(draft)
    for name in filter(_is_program, archive.namelist()):
        os.chmod(os.path.join(draft, name), 0o755)  # noqa: S103 - programs in a folder that is closed
    try:
        os.rename(draft, target)
    except OSError:
        with contextlib.suppress(OSError):
            _remove_folder(draft)  # another boot has created it first
        if not os.path.isdir(target):
            raise


def _is_program(name: str) -> bool:
    return name.endswith((".so", ".sh")) or "/bin/" in name


def _restore(archive: zipfile.ZipFile, target: str) -> list[str]:
    """Make `target` equal to an archive; return the paths of entries that differed. Raises: OSError.

    Files are replaced one by one, so agents that run from this folder miss none meanwhile.
    """
    members = {name: os.path.join(target, name) for name in archive.namelist() if not name.endswith("/")}
    folders = {target}
    for path in members.values():
        while (path := os.path.dirname(path)) not in folders:
            folders.add(path)
    changed = [] if _is_folder(target) else [target]
    if changed:
        os.unlink(target)
        os.mkdir(target)
    wanted = set(members.values())
    for folder, inner, files in os.walk(target, onerror=_raise):
        for name in (*inner, *files):
            path = os.path.join(folder, name)
            if _is_folder(path):
                if path in folders:
                    continue
                _remove_folder(path)
            elif path in wanted and stat.S_ISREG(os.lstat(path).st_mode):
                continue
            else:
                os.unlink(path)
            inner[:] = [other for other in inner if other != name]
            if not _is_bytecode(path):
                changed.append(path)
    for name, path in members.items():
        content = archive.read(name)
        if _is_same(path, content, is_program=_is_program(name)):
            continue
        draft = f"{target}.{os.getpid()}.new"
        with open(draft, "wb") as file:
            file.write(content)
        os.chmod(draft, 0o755 if _is_program(name) else 0o644)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.replace(draft, path)
        changed.append(path)
    return changed


def _is_bytecode(path: str) -> bool:
    """Whether an interpreter itself makes such an entry, as a program's interpreter does; it is removed silently."""
    return path.endswith((".pyc", "/__pycache__"))


def _is_folder(path: str) -> bool:
    """Whether this is a folder itself, and no link to one."""
    return os.path.isdir(path) and not os.path.islink(path)


def _is_same(path: str, content: bytes, *, is_program: bool) -> bool:
    try:
        with open(path, "rb") as file:
            is_runnable = bool(os.fstat(file.fileno()).st_mode & stat.S_IXUSR)
            return is_runnable >= is_program and file.read(len(content) + 1) == content
    except OSError:
        return False


def _raise(error: OSError) -> None:
    raise error


def _become_agent(
    options: argparse.Namespace,
    service: Service,
    answer: dict[str, Any],
    report: dict[str, Any],
    folder: str,
    code: str,
) -> None:
    """Start the carrier, and execute the agent in this process. The environment passes both tokens."""
    port = _start_carrier(service)
    facts = os.path.join(folder, "node.json")
    with open(facts, "w", encoding="utf-8") as file:
        json.dump({**report, "service_url": f"http://127.0.0.1:{port}"}, file)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_WITHHELD)}
    environment["PYTHONPATH"] = code
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    environment["CLARY_POOL_TOKEN"] = answer["pool_token"]
    environment["CLARY_AGENT_TOKEN"] = answer["agent_token"]
    command = [sys.executable, "-m", "clary.agent", "--service", f"http://127.0.0.1:{port}"]
    command += ["--pool", answer["pool"], "--job", answer["job"], "--attempt", str(answer["attempt"])]
    command += ["--host", answer["host"], "--node", facts]
    sys.stdout.flush()
    sys.stderr.flush()
    os.umask(0o022)  # a scheduler's umask would deny hosts of other users access to cgroups and folders
    os.chdir(folder)
    os.execve(sys.executable, command, environment)  # noqa: S606 - our own agent


def _start_carrier(service: Service) -> int:
    """Start the child that forwards connections of this node to the service; return its port on 127.0.0.1.

    The child ignores the signals that a scheduler sends to a whole step, and ends after its parent, the agent.
    """
    listening = socket.create_server(("127.0.0.1", 0), backlog=256)
    port = int(listening.getsockname()[1])
    parent = os.getpid()
    if os.fork():
        listening.close()
        return port
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        asyncio.run(_carry_all(service, listening, parent))
    finally:
        os._exit(0)


async def _carry_all(service: Service, listening: socket.socket, parent: int) -> None:
    async def carry(near: asyncio.StreamReader, near_out: asyncio.StreamWriter) -> None:
        try:
            opening = asyncio.open_connection(service.host, service.port, ssl=service.context, limit=COPY_BYTES)
            far, far_out = await asyncio.wait_for(opening, REQUEST_TIMEOUT_S)
        except (asyncio.TimeoutError, OSError) as error:  # in Python 3.10 it is not the built-in TimeoutError
            why = str(error) or f"no connection within {REQUEST_TIMEOUT_S:g} s"
            print(f"clary boot: {service.host}:{service.port}: {why}", file=sys.stderr, flush=True)
            near_out.close()
            return
        await asyncio.gather(_copy(near, far_out), _copy(far, near_out))

    await asyncio.start_server(carry, sock=listening, limit=COPY_BYTES)
    while os.getppid() == parent:  # noqa: ASYNC110 - nothing tells of another process's end
        await asyncio.sleep(1.0)


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Copy one direction until its end, then close the connection: HTTP closes both directions at once."""
    with contextlib.suppress(OSError):
        while data := await source.read(COPY_BYTES):
            target.write(data)
            await target.drain()
    target.close()


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
