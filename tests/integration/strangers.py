"""Programs that connect to the ports of a training without being ranks, and the answers that they get.

`ATTACKS` are functions of a place, (address, port). Each returns the bytes of the answer. `Knocking` runs all attacks
repeatedly at every port on which a process listens. `Recording` relays between a rank and its store, and records what
the rank sends, for a replay.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from pathlib import Path

from clary.train.collective.bootstrap.handshake import MAGIC, NONCE_BYTES, PROOF_BYTES, Role
from clary.train.collective.bootstrap.store_server import REQUEST, SET

LIMIT_S = 15.0  # time within which a stranger must be disconnected; listeners allow one 10 s
PROOF = 1 + PROOF_BYTES
_LISTENING = "0A"
_FOUR_GIB = 0xFFFFFFFF
_FLOOD_BYTES = 8 << 20
_GREETING = struct.Struct("<BII32s")


HTTP = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 100
OVERSIZE = REQUEST.pack(SET, 1024, _FOUR_GIB, _FOUR_GIB) + struct.pack("<QQ", _FOUR_GIB, _FOUR_GIB)
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff\xff\xff\x00\x00" + b"\xff" * 4096  # a frame of 16 MiB


def garbage(place):
    """Send HTTP requests."""
    return _said(place, HTTP)


def zeros(place):
    """Send more zeros than a listener should buffer."""
    return _said(place, bytes(_FLOOD_BYTES))


def forged_hello(place):
    """Send the greeting of the next rank in every role, with a forged proof."""
    answers = b""
    for role in Role:
        answers += _said(place, MAGIC + _GREETING.pack(role, 1, 0, os.urandom(32)) + bytes(PROOF_BYTES))
    return answers


def oversize(place):
    """Announce four GiB in place of a greeting, and after a greeting, and begin to send them."""
    greeting = MAGIC + _GREETING.pack(Role.STORE, 1, 0, os.urandom(32))
    return _said(place, OVERSIZE + bytes(_FLOOD_BYTES)) + _said(place, greeting + OVERSIZE + bytes(_FLOOD_BYTES))


def hangs_up(place):
    """Connect and reset the connection at once, many times."""
    for _ in range(50):
        with contextlib.suppress(OSError), socket.create_connection(place, timeout=5) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return b""


ATTACKS = (garbage, zeros, forged_hello, oversize, hangs_up)
WORDS = (HTTP, OVERSIZE * 1000, HTTP2, bytes(65536), b"\xff" * 65536)


def pestering(place):
    """Return connections to a listener that may never disconnect them: silent ones, and one for each of `WORDS`."""
    hangs_up(place)
    opened = silent(place)
    for words in WORDS:
        with contextlib.suppress(OSError):
            opened.append(socket.create_connection(place, timeout=5))
            opened[-1].settimeout(2)
            opened[-1].sendall(words)
    return opened


def silent(place, count=100):
    """Return `count` connections that send nothing."""
    opened = []
    with contextlib.suppress(OSError):  # the listener may have been closed meanwhile
        for _ in range(count):
            opened.append(socket.create_connection(place, timeout=5))
    return opened


def is_hung_up_on(sock, limit_s=LIMIT_S):
    """Return whether the peer ends the connection within `limit_s`."""
    sock.settimeout(limit_s)
    try:
        while sock.recv(4096):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


def listening_places(pid):
    """Return the TCP places on which a process listens; a wildcard address is given as loopback."""
    try:
        inodes = {os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink()}
    except OSError:
        return []
    return places_of_table(pid, inodes)


def places_of_table(pid, inodes=None):
    """Return the TCP places with a listener in the network namespace of a process.

    Args:
        inodes: the sockets to include, named as the links in /proc/PID/fd; None for all.
    """
    found = []
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == _LISTENING and (inodes is None or f"socket:[{words[9]}]" in inodes):
                    found.append(_place(words[1], family))
    return found


def peak_bytes(pid):
    """Return the peak resident memory of a process, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    raise AssertionError(f"process {pid} has no VmHWM")


class Knocking:
    """Attacks all ports of a process, each from a thread of its own, until it is closed.

    Args:
        pid: the process to attack.

    Attributes:
        answers: the bytes that each attack received.
        failures: errors of attacks, such as a listener that did not disconnect in time.
        places: the places that were attacked.
    """

    def __init__(self, pid):
        self.answers = []
        self.failures = []
        self.places = set()
        self._pid = pid
        self._silent = []
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._look, daemon=True)]
        self._threads[0].start()

    def close(self):
        """End the attacks; silent connections stay open until then."""
        self._is_over.set()
        for thread in self._threads:
            thread.join(60)
        for sock in self._silent:
            sock.close()

    def await_places(self, count, limit_s=30.0):
        """Wait until `count` listeners are being attacked."""
        deadline = time.monotonic() + limit_s
        while len(self.places) < count:
            assert time.monotonic() < deadline, f"only {self.places} were there to be attacked"
            time.sleep(0.05)

    def _look(self):
        while not self._is_over.is_set():
            for place in set(listening_places(self._pid)) - self.places:
                self.places.add(place)
                thread = threading.Thread(target=self._knock, args=(place,), daemon=True)
                self._threads.append(thread)
                thread.start()
            self._is_over.wait(0.02)

    def _knock(self, place):
        self._silent += silent(place)
        while not self._is_over.is_set():
            for attack in ATTACKS:
                try:
                    self.answers.append(attack(place))
                except ConnectionRefusedError:  # the listener is closed
                    return
                except OSError:  # or the listener's backlog is full
                    pass
                except AssertionError as error:
                    self.failures.append(f"{attack.__name__}: {error}")
            self._is_over.wait(0.05)


class Recording:
    """Relays between clients and a server on loopback, and records the bytes of the first client.

    Attributes:
        port: the port on which it accepts clients.
        words: the bytes that the first client has sent to the server.
    """

    def __init__(self):
        self.words = b""
        self._port = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._threads = []
        self._start(self._serve)

    def lead_to(self, port):
        """Relay clients that connect from now on to this port."""
        self._port = port

    def close(self):
        """Close the listener; open connections end with their clients."""
        self._listener.close()

    def _start(self, work, *arguments):
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _serve(self):
        is_first = True
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._port), timeout=10)
                server.settimeout(None)
            except ConnectionRefusedError:  # the server does not listen yet: the rank retries
                client.close()
                continue
            except OSError:
                return
            self._start(self._pass_on, client, server, is_first)
            self._start(self._pass_on, server, client, False)
            is_first = False

    def _pass_on(self, source, target, is_kept):
        with contextlib.suppress(OSError):
            while more := source.recv(65536):
                if is_kept:
                    self.words += more
                target.sendall(more)
            target.shutdown(socket.SHUT_WR)


def assert_no_proof(answers):
    """Assert that no listener proved itself to a stranger: each greeting gets at most a nonce and a refusal."""
    for answer in answers:
        refused = NONCE_BYTES + PROOF
        assert len(answer) <= len(Role) * refused, answer
        for start in range(0, len(answer), refused):
            assert answer[start + NONCE_BYTES : start + refused] in (b"", bytes(PROOF)), answer


def _said(place, words):
    """Return the bytes received in answer to `words` until the peer disconnects."""
    answer = b""
    with socket.create_connection(place, timeout=5) as sock:
        sock.settimeout(LIMIT_S)
        try:
            sock.sendall(words)
            while more := sock.recv(4096):
                answer += more
        except TimeoutError:
            raise AssertionError(f"{place} lets a stranger talk for {LIMIT_S} s") from None
        except OSError:  # the peer reset the connection while bytes were being sent
            pass
    return answer


def _place(text, family):
    address, _, port = text.partition(":")
    raw = bytes.fromhex(address)
    packed = b"".join(raw[start : start + 4][::-1] for start in range(0, len(raw), 4))
    found = socket.inet_ntop(family, packed)
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(found, found), int(port, 16)
