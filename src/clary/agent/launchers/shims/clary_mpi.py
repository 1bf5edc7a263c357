"""Open MPI across hosts without ssh: mpirun on the first host starts its daemons on other hosts with this program.

    clary_mpi.py serve ADDRESS:PORT      on every other host: runs mpirun's commands until the leader has ended
    clary_mpi.py lead MPIRUN...          on the first host: waits for the servers, runs mpirun, tells them when it has
                                         ended
    clary_mpi.py rsh [-x] HOST COMMAND   replaces ssh: mpirun calls it (`bin/clary-mpi-rsh`)

Where: the mpi launcher starts `serve` and `lead`. CLARY_MPI_SECRET holds the secret of the attempt's hosts,
CLARY_MPI_PEERS a JSON object: host name -> [address, port]. Both sides of a connection prove that they know the secret
(HMAC over the other side's nonce). Then the client sends one line of JSON. The server returns a command's output and
exit code as frames: kind (1 byte), length (4 bytes, big endian), content. It runs in the user's environment: Python 3.8
or later, with the standard library only, without clary.
"""

from __future__ import annotations

import contextlib
import ctypes
import hmac
import json
import os
import secrets
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from typing import Any, BinaryIO

LEADER_WAIT_S = 300.0  # for the leader to connect; hosts of a job start within seconds of each other
CONNECT_WAIT_S = 300.0  # for a server to listen
HANDSHAKE_S = 30.0
END_WAIT_S = 20.0  # for daemons to end after mpirun has ended
_POLL_S = 0.1
_NONCE_BYTES = 16
_MAX_LINE_BYTES = 1 << 20
_MAX_PROOF_BYTES = 128  # limit of a line from an unauthenticated peer; nonces and proofs have 32 and 64
_CHUNK_BYTES = 1 << 16
_OUT, _ERR, _EXIT = 1, 2, 3
_HEADER = struct.Struct(">BI")
_CODE = struct.Struct(">i")
_SHELL = "/bin/bash"  # keeps signals blocked, unlike dash; see _leave_signals_to_ranks
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_CANNOT_REACH_CODE = 255  # exit code of a failed ssh
_STAT_PARENT_FIELD = 1  # index of the field in /proc/PID/stat, after the command's closing bracket


class HandshakeError(Exception):
    """The other side does not know the secret, or does not use this protocol."""


def main() -> None:
    """Execute the subcommand of the command line."""
    role, arguments = (sys.argv[1], sys.argv[2:]) if len(sys.argv) > 1 else ("", [])
    if role == "serve" and len(arguments) == 1:
        address, _, port = arguments[0].rpartition(":")
        sys.exit(Server(address, int(port), secret=_secret()).run())
    if role == "lead" and arguments:
        sys.exit(lead(arguments, peers=_peers(), secret=_secret()))
    if role == "rsh":
        sys.exit(rsh(arguments, peers=_peers(), secret=_secret()))
    sys.exit("usage: clary_mpi.py serve ADDRESS:PORT | lead MPIRUN... | rsh HOST COMMAND...")


class Server:
    """Runs commands for mpirun until the leader reports mpirun's end or disconnects.

    Only the ranks get SIGTERM and SIGINT, see `_leave_signals_to_ranks`.
    """

    def __init__(self, address: str, port: int, *, secret: bytes) -> None:
        self._secret = secret
        self._listener = socket.create_server((address, port))
        self._end = threading.Event()
        self._is_led = threading.Event()
        self._code = 1

    @property
    def port(self) -> int:
        """Port on which the server listens."""
        return int(self._listener.getsockname()[1])

    def run(self) -> int:
        """Serve; return 0 if the leader reported the end, 1 if it never connected or disconnected early."""
        _leave_signals_to_ranks()
        # Daemons in the background become children of this process, so that it can end them.
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        threading.Thread(target=self._accept, name="accept", daemon=True).start()
        if not self._is_led.wait(LEADER_WAIT_S):
            print(f"clary-mpi: the first host did not call within {LEADER_WAIT_S:.0f} s", file=sys.stderr)
        else:
            self._end.wait()  # no deadline: the connection ends with the leader
        self._listener.close()
        _end_descendants(END_WAIT_S if self._code == 0 else 0.0)
        return self._code

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), name="serve", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                stream = greet(connection, self._secret, role="server")
                request = json.loads(_read_line(stream))
            except (OSError, ValueError, HandshakeError) as error:
                print(f"clary-mpi: a connection was refused: {error}", file=sys.stderr)
                return
            if request["kind"] == "lead":
                self._follow(stream)
            else:
                self._run_command(connection, stream, request["command"])

    def _follow(self, stream: BinaryIO) -> None:
        self._is_led.set()
        try:
            line = _read_line(stream)
        except OSError:
            line = b""
        if line:
            self._code = 0
        else:
            print("clary-mpi: the first host is gone; ranks of this host are ended", file=sys.stderr)
        self._end.set()

    def _run_command(self, connection: socket.socket, stream: BinaryIO, command: str) -> None:
        lock = threading.Lock()
        process = subprocess.Popen(
            [_SHELL, "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        threading.Thread(target=_kill_when_gone, args=(stream, process), name="watch", daemon=True).start()
        pumps = [
            threading.Thread(target=_pump, args=(pipe, connection, kind, lock), name="pump", daemon=True)
            for pipe, kind in ((process.stdout, _OUT), (process.stderr, _ERR))
        ]
        for pump in pumps:
            pump.start()
        code = process.wait()
        for pump in pumps:
            pump.join(END_WAIT_S)  # a daemon in the background may keep the pipes open
        with lock:
            try:
                connection.sendall(_HEADER.pack(_EXIT, _CODE.size) + _CODE.pack(code))
                connection.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # mpirun has ended; the leader's connection reports the result


def lead(command: list[str], *, peers: dict[str, tuple[str, int]], secret: bytes) -> int:
    """Run mpirun once every server answers; return its exit code, or 128 + the signal that ended it.

    Args:
        command: mpirun with its arguments.
        peers: name -> address and port of each host's server.
        secret: of the attempt.
    Raises: as `connect`.
    """
    connections = []
    for name, place in peers.items():
        connection, stream = connect(name, place, secret)
        connection.sendall(b'{"kind": "lead"}\n')
        connections.append((connection, stream))
    _leave_signals_to_ranks()
    code = subprocess.Popen(command).wait()
    for connection, _ in connections:
        try:
            connection.sendall(b'{"done": %d}\n' % code)
            connection.close()
        except OSError:
            pass  # that host has ended already
    return code if code >= 0 else 128 - code


def _leave_signals_to_ranks() -> None:
    """Block SIGTERM and SIGINT here and in child processes: mpirun and its daemons.

    A scheduler may signal every process of a step at once. mpirun would then end the job without a wait for ranks that
    save their state. mpirun's daemons unblock all signals in the ranks that they start, so ranks still get them.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})


def rsh(arguments: list[str], *, peers: dict[str, tuple[str, int]], secret: bytes) -> int:
    """Run a command on a host, as ssh would: print its output here and return its exit code.

    Args:
        arguments: as for ssh: options, which are ignored, the host, and the words of the command.
        peers: name -> address and port of each host's server.
        secret: of the attempt.
    Raises: as `connect`.
    """
    _leave_signals_to_ranks()  # mpirun has unblocked the signals, which must not end this command
    while arguments and arguments[0].startswith("-"):
        arguments = arguments[1:]
    if len(arguments) < 2 or arguments[0] not in peers:
        print(f"clary-mpi: no host for {arguments[:1]}; hosts are {list(peers)}", file=sys.stderr)
        return _CANNOT_REACH_CODE
    connection, stream = connect(arguments[0], peers[arguments[0]], secret)
    with connection:
        request = {"kind": "command", "command": " ".join(arguments[1:])}
        connection.sendall(json.dumps(request).encode() + b"\n")
        return _relay(stream)


def connect(name: str, place: tuple[str, int], secret: bytes) -> tuple[socket.socket, BinaryIO]:
    """Connect to a host's server, which may still be starting; return the connection and its input stream.

    Args:
        name: of the host, for messages.
        place: address and port.
        secret: of the attempt.
    Raises: SystemExit with the error after `CONNECT_WAIT_S`, or at once if the secret is refused.
    """
    deadline_s = time.monotonic() + CONNECT_WAIT_S
    while True:
        try:
            connection = socket.create_connection(place, timeout=HANDSHAKE_S)
            return connection, greet(connection, secret, role="client")
        except HandshakeError as error:
            raise SystemExit(f"clary-mpi: {name} refused: {error}") from error
        except OSError as error:
            if time.monotonic() > deadline_s:
                raise SystemExit(f"clary-mpi: {name} at {place[0]}:{place[1]} does not answer: {error}") from error
            time.sleep(_POLL_S)


def greet(connection: socket.socket, secret: bytes, *, role: str) -> BinaryIO:
    """Prove to the other side that we know the secret, and check its proof; return the stream to read.

    Args:
        connection: a new connection; its timeout is removed on success.
        secret: of the attempt.
        role: of this side, `client` or `server`.
    Raises: HandshakeError, OSError.
    """
    connection.settimeout(HANDSHAKE_S)
    stream = connection.makefile("rb")
    nonce = secrets.token_hex(_NONCE_BYTES)
    connection.sendall(nonce.encode() + b"\n")
    theirs = _read_line(stream, _MAX_PROOF_BYTES).decode("ascii", "replace")
    other_role = "client" if role == "server" else "server"
    connection.sendall(_proof(secret, role, theirs).encode() + b"\n")
    if not hmac.compare_digest(_read_line(stream, _MAX_PROOF_BYTES), _proof(secret, other_role, nonce).encode()):
        raise HandshakeError("it does not know the secret of this attempt")
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return stream


def _proof(secret: bytes, role: str, nonce: str) -> str:
    """Return a proof of the secret for a role; because of the role, an echo of a peer's proof is invalid."""
    return hmac.new(secret, f"{role}:{nonce}".encode(), "sha256").hexdigest()


def _read_line(stream: BinaryIO, max_bytes: int = _MAX_LINE_BYTES) -> bytes:
    return stream.readline(max_bytes).rstrip(b"\n")


def _pump(pipe: BinaryIO, connection: socket.socket, kind: int, lock: Any) -> None:
    while True:
        data = os.read(pipe.fileno(), _CHUNK_BYTES)
        if not data:
            return
        with lock:
            try:
                connection.sendall(_HEADER.pack(kind, len(data)) + data)
            except OSError:
                return


def _kill_when_gone(stream: BinaryIO, process: subprocess.Popen[bytes]) -> None:
    """Kill a command if its caller closes the connection before the command has ended."""
    with contextlib.suppress(OSError):
        stream.read()
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def _relay(stream: BinaryIO) -> int:
    while True:
        header = stream.read(_HEADER.size)
        if len(header) < _HEADER.size:
            print("clary-mpi: the connection broke before the command ended", file=sys.stderr)
            return _CANNOT_REACH_CODE
        kind, length = _HEADER.unpack(header)
        data = stream.read(length)
        if kind == _EXIT:
            (code,) = _CODE.unpack(data)
            return int(code) if code >= 0 else 128 - int(code)
        target = sys.stdout if kind == _OUT else sys.stderr
        target.buffer.write(data)
        target.buffer.flush()


def _end_descendants(wait_s: float) -> None:
    """Wait `wait_s` for descendants to end by themselves, then kill them; mpirun's daemons end in milliseconds."""
    deadline_s = time.monotonic() + wait_s
    while True:
        pids = _descendants()
        if not pids:
            return
        if time.monotonic() > deadline_s:
            break
        time.sleep(_POLL_S)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _descendants() -> list[int]:
    """Return the descendants of this process, without zombies."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    fields = file.read().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] not in ("Z", "X"):
                children.setdefault(int(fields[_STAT_PARENT_FIELD]), []).append(int(name))
    found, queue = [], [os.getpid()]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def _secret() -> bytes:
    return os.environ["CLARY_MPI_SECRET"].encode()


def _peers() -> dict[str, tuple[str, int]]:
    return {name: (place[0], int(place[1])) for name, place in json.loads(os.environ["CLARY_MPI_PEERS"]).items()}


if __name__ == "__main__":
    main()
