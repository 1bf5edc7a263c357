"""horovodrun: starts the ranks of a program on this machine, and ends all ranks when one fails.

    horovodrun -np 4 python train.py

Each printed line of a rank's output begins with `[RANK]<stdout>:` or `[RANK]<stderr>:`, on request after the time. In a
job with several hosts, use the job's distribution (mpi or torch_distributed), which starts ranks on all hosts.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

from horovod.runner import options as lines

_LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
_SHARED_WORD = "CLARY_COLLECTIVE_SECRET"  # variable of the secret by which ranks authenticate each other
_GRACE_S = 5.0  # seconds between SIGTERM and SIGKILL
_KILLED_S = 2.0  # seconds for a killed rank to end
_LOOK_S = 0.05
_FAILED = 1
_USAGE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code: 2 for wrong options, else the result of `run_command`."""
    options = lines.parser().parse_args(arguments)
    if options.check_build:
        print(check_build())
        return 0
    try:
        count, given = _read(options)
    except (ValueError, OSError) as error:
        print(f"horovodrun: {error}", file=sys.stderr)
        return _USAGE
    for option in lines.without_effect(options):
        print(f"horovodrun: {option} has no effect", file=sys.stderr)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if options.verbose:
        print(f"horovodrun: {count} ranks of: {' '.join(command)}", file=sys.stderr)
    return run_command(command, count, variables=given, folder=options.output_filename, has_stamps=options.stamps)


def check_build() -> str:
    """Return the list of available features, as horovodrun prints it."""
    import importlib.util

    frameworks = (("TensorFlow", "tensorflow"), ("PyTorch", "torch"), ("MXNet", "mxnet"))
    marks = [f"    [{'X' if importlib.util.find_spec(name) else ' '}] {title}" for title, name in frameworks]
    return "\n".join(
        [
            f"Horovod v{lines.VERSION} (Clary):",
            "",
            "Available Frameworks:",
            *marks,
            "",
            "Available Controllers:",
            "    [ ] MPI",
            "    [X] Gloo",
            "",
            "Available Tensor Operations:",
            "    [ ] NCCL",
            "    [ ] DDL",
            "    [ ] CCL",
            "    [ ] MPI",
            "    [X] Gloo",
        ]
    )


def _read(options: Any) -> tuple[int, dict[str, str]]:
    """Return the number of ranks and their environment variables.

    Raises: ValueError for options that cannot be honoured; OSError for a host file that cannot be read.
    """
    if refused := lines.refusal(options):
        raise ValueError(refused)
    if not options.command:
        raise ValueError("no program: horovodrun -np 2 python train.py")
    hostfile: list[str] = []
    if options.hostfile:
        with open(options.hostfile, encoding="utf-8") as file:
            hostfile = file.read().splitlines()
    found = lines.slots(options.hosts, hostfile)
    names = {*_LOCAL_NAMES, socket.gethostname(), os.environ.get("SM_CURRENT_HOST", "localhost")}
    others = [name for name in found if name not in names]
    if others:
        raise ValueError(
            f"hosts {', '.join(others)} are not this machine: start the program as a job with instance_count and "
            "distribution={'mpi': {'enabled': True}}, which starts ranks on all hosts"
        )
    room = sum(found.values())
    count = options.num_proc or room or 1
    if room and count > room:
        raise ValueError(f"-np {count} asks for more ranks than the {room} slots of the hosts")
    return count, lines.variables(options)


def run_command(
    command: Sequence[str],
    count: int,
    *,
    variables: Mapping[str, str] | None = None,
    folder: str | None = None,
    has_stamps: bool = False,
) -> int:
    """Run `count` ranks of a command, and end all of them when one fails.

    Args:
        command: program and arguments.
        variables: additional environment variables of each rank.
        folder: folder for a file with each rank's output; None prints the output with the rank before each line.
        has_stamps: whether each printed line begins with the time.

    Returns: the exit code of the first rank that failed, or 128 plus the signal that ended it; 1 after a signal to this
        process; else 0.
    Raises: OSError if the command cannot be started.
    """
    port = _free_port()
    # without a secret any local user could join as a rank
    secret = os.environ.get(_SHARED_WORD) or secrets.token_hex(32)
    ranks: list[subprocess.Popen[bytes]] = []
    readers: list[threading.Thread] = []
    stopped = threading.Event()
    with _signals_stop(stopped):
        try:
            for rank in range(count):
                files = _files(folder, rank, count)
                process = subprocess.Popen(
                    list(command),
                    env={**os.environ, _SHARED_WORD: secret, **(variables or {}), **rank_variables(rank, count, port)},
                    stdout=files[0] if files else subprocess.PIPE,
                    stderr=files[1] if files else subprocess.PIPE,
                    start_new_session=True,
                )
                ranks.append(process)
                for file in files:
                    file.close()
                if not files:
                    readers += _readers(process, rank, has_stamps)
            code = _await(ranks, stopped)
        finally:
            _end(ranks)
            for reader in readers:
                reader.join(_GRACE_S)
    return code


def rank_variables(rank: int, count: int, port: int) -> dict[str, str]:
    """Return the environment variables of a rank, as horovodrun and torchrun set them.

    Args:
        rank: rank of the process; all ranks are on this machine.
        count: number of ranks.
        port: free port of the loopback interface, at which rank 0 meets the other ranks.
    """
    return {
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(count),
        "HOROVOD_LOCAL_RANK": str(rank),
        "HOROVOD_LOCAL_SIZE": str(count),
        "HOROVOD_CROSS_RANK": "0",
        "HOROVOD_CROSS_SIZE": "1",
        "RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "CLARY_HOROVOD_ADDR": "127.0.0.1",
        "CLARY_HOROVOD_PORT": str(port),
    }


def _await(ranks: Sequence[subprocess.Popen[bytes]], stopped: threading.Event) -> int:
    """Wait until all ranks have ended or one has failed."""
    while not stopped.is_set():
        codes = [process.poll() for process in ranks]
        failed = [(rank, code) for rank, code in enumerate(codes) if code]
        if failed:
            rank, code = failed[0]
            ending = f"signal {-code}" if code < 0 else f"exit code {code}"
            print(f"horovodrun: rank {rank} ended with {ending}; the others are ended", file=sys.stderr)
            return 128 - code if code < 0 else code
        if all(code == 0 for code in codes):
            return 0
        stopped.wait(_LOOK_S)
    return _FAILED


def _end(ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    """End the running ranks, each with the processes that it has started."""
    living = [process for process in ranks if process.poll() is None]
    for process in living:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
    deadline = time.monotonic() + _GRACE_S
    for process in living:
        try:
            process.wait(max(deadline - time.monotonic(), 0.01))
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):  # a rank that hangs in the kernel is left
                process.wait(_KILLED_S)


@contextlib.contextmanager
def _signals_stop(stopped: threading.Event) -> Any:
    """Make SIGTERM and SIGINT end the ranks; do nothing outside of the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda *_: stopped.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _files(folder: str | None, rank: int, count: int) -> list[BinaryIO]:
    if folder is None:
        return []
    place = os.path.join(folder, f"rank.{rank:0{len(str(count - 1))}d}")
    os.makedirs(place, exist_ok=True)
    return [open(os.path.join(place, name), "wb") for name in ("stdout", "stderr")]


def _readers(process: subprocess.Popen[bytes], rank: int, has_stamps: bool) -> list[threading.Thread]:
    """Start the threads that print a rank's output."""
    made = []
    for stream, target, name in ((process.stdout, sys.stdout, "stdout"), (process.stderr, sys.stderr, "stderr")):
        prefix = f"[{rank}]<{name}>:"
        thread = threading.Thread(target=_print, args=(stream, target, prefix, has_stamps), daemon=True)
        thread.start()
        made.append(thread)
    return made


def _print(stream: Any, target: Any, prefix: str, has_stamps: bool) -> None:
    for line in stream:
        stamp = time.strftime("%a %b %d %H:%M:%S %Y") if has_stamps else ""
        target.write(f"{stamp}{prefix}{line.decode(errors='replace')}")
        target.flush()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
