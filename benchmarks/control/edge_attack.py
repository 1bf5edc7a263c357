"""An attacker without a key, for `bench_edge`: `python -m benchmarks.control.edge_attack KIND PORT SECONDS`.

It imports the standard library alone, so that the program of a job can run it as a file.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import sys
import threading
import time

MIB = 1024 * 1024
NUM_BODIES = 120
NUM_SLOW = 400
NUM_THREADS = 4


def attack_json(port: int, end_s: float) -> int:
    """Post 8 MB of empty lists to the door for signing in, from four threads."""
    body = b"[" + b"[]," * 2_700_000 + b"[]]"
    answered = []

    def post() -> None:
        while time.monotonic() < end_s:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            with contextlib.suppress(OSError, http.client.HTTPException):
                connection.request("POST", "/clary/v1/session", body, {"Content-Type": "application/json"})
                answered.append(connection.getresponse().status)
            connection.close()

    threads = [threading.Thread(target=post) for _ in range(NUM_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(answered)


def attack_bodies(port: int, end_s: float) -> int:
    """Send 8 MB on each of 120 connections, and never their last piece."""
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nX-Amz-Target: SageMaker.ListTrainingJobs\r\n"
    head += b"Content-Type: application/x-amz-json-1.1\r\nContent-Length: %d\r\n\r\n" % (8 * MIB)
    return _keep_sending(port, end_s, NUM_BODIES, head, b"x" * 65536, pause_s=0.0)


def attack_heads(port: int, end_s: float) -> int:
    """Send a header a second on each of 400 connections."""
    return _keep_sending(port, end_s, NUM_SLOW, b"POST / HTTP/1.1\r\nHost: localhost\r\n", b"X-A: b\r\n", pause_s=1.0)


def attack_slow_bodies(port: int, end_s: float) -> int:
    """Send a byte a second of a body that the door for signing in takes, on each of 400 connections."""
    head = b"POST /clary/v1/session HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8000\r\n\r\n"
    return _keep_sending(port, end_s, NUM_SLOW, head, b"x", pause_s=1.0)


def _keep_sending(port: int, end_s: float, count: int, head: bytes, piece: bytes, *, pause_s: float) -> int:
    """Hold `count` connections on which pieces follow on a head; one that is closed is opened again."""
    sockets: list[socket.socket | None] = [None] * count
    num_opened = 0
    while time.monotonic() < end_s:
        for index, one in enumerate(sockets):
            try:
                if one is None:
                    opened = sockets[index] = socket.create_connection(("127.0.0.1", port), timeout=5)
                    opened.sendall(head)
                    opened.settimeout(0.05)
                    num_opened += 1
                else:
                    one.sendall(piece)
            except TimeoutError:
                continue
            except OSError:
                if one is not None:
                    one.close()
                sockets[index] = None
        time.sleep(pause_s)
    for one in sockets:
        if one is not None:
            one.close()
    return num_opened


ATTACKS = {"json": attack_json, "bodies": attack_bodies, "heads": attack_heads, "slow-bodies": attack_slow_bodies}


def main() -> None:
    """Attack and say how often."""
    kind, port, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    print(json.dumps({"count": ATTACKS[kind](port, time.monotonic() + seconds)}), flush=True)


if __name__ == "__main__":
    main()
