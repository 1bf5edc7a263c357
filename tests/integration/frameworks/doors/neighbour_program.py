"""Program of another job, which tries every path to the ports of a training job and prints the reached ports.

target.json in its folder: {"open": [[ADDRESS, PORT]...], "address": ..., "named": [...], "folders": [...]}. It prints a
line `TRIED {...}`. Listeners in its own host, such as the relay to the service, are listed separately.
"""

import contextlib
import json
import os
import socket
import time
from urllib.parse import urlsplit

CONNECT_S = 1.0
LISTEN_S = 3.0
NAMES = ("algo-1", "algo-2", "localhost", "127.0.0.1", "::1", "host.docker.internal")
ETHERNET_IP = 0x0800


def connects(address, port):
    """Return whether a process listens at this address and port."""
    try:
        socket.create_connection((address, port), timeout=CONNECT_S).close()
    except OSError:
        return False
    return True


def nearby(address):
    """Return addresses in the subnet of an address, and the link-local addresses that its host's interface may have."""
    head, _, _ = address.rpartition(".")
    around = [f"{head}.{number}" for number in (*range(1, 9), 254)]
    numbers = socket.inet_aton(address)
    # For a MAC address of 02:00 and the four bytes of the IPv4 address (RFC 4291, appendix A: the universal bit is
    # inverted).
    card = f"fe80::{numbers[0]:x}ff:fe{numbers[1]:02x}:{numbers[2]:02x}{numbers[3]:02x}"
    return [*around, *(f"{card}%{name}" for _, name in socket.if_nameindex() if name != "lo")]


def through_proxy(address, port):
    """Return the first line of the response of the hosts' proxy to a CONNECT; None without a proxy."""
    url = urlsplit(os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy") or "")
    if not url.hostname:
        return None
    try:
        with socket.create_connection((url.hostname, url.port), timeout=10) as sock:
            sock.settimeout(10)
            sock.sendall(f"CONNECT {address}:{port} HTTP/1.1\r\nHost: {address}:{port}\r\n\r\n".encode())
            return sock.recv(4096).decode(errors="replace").splitlines()[0]
    except (OSError, IndexError) as error:
        return f"nothing ({type(error).__name__})"


def named_reached(names):
    """Return those abstract Unix sockets, named as in /proc/net/unix, to which this process can connect."""
    found = []
    for name in names:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as sock:
            sock.connect("\0" + name[1:])
            found.append(name)
    return found


def overheard(ports):
    """Return the number of frames with the victim's ports at this host's interfaces; None if it may not capture."""
    try:
        card = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0003))
    except (OSError, AttributeError):
        return None
    count, until = 0, time.monotonic() + LISTEN_S
    with card:
        card.settimeout(0.2)
        while time.monotonic() < until:
            with contextlib.suppress(OSError):
                frame = card.recv(2048)
                if int.from_bytes(frame[12:14], "big") == ETHERNET_IP:
                    start = 14 + 4 * (frame[14] & 15)
                    pair = {int.from_bytes(frame[start + at : start + at + 2], "big") for at in (0, 2)}
                    count += bool(pair & ports)
    return count


def seen(folders):
    """Return the folders of the machine that this program can list or write."""
    found = []
    for folder in folders:
        with contextlib.suppress(OSError):
            os.listdir(folder)
            found.append(folder)
        with contextlib.suppress(OSError), open(os.path.join(folder, "planted"), "w", encoding="ascii"):
            found.append(f"{folder} to write")
    return found


def own_ports():
    """Return the ports with a listener in the network of this host."""
    found = set()
    for table in ("tcp", "tcp6"):
        with open(f"/proc/net/{table}", encoding="ascii") as file:
            rows = [line.split() for line in file.read().splitlines()[1:]]
        found |= {int(words[1].rpartition(":")[2], 16) for words in rows if words[3] == "0A"}
    return found


def main():
    """Try every path, and print the results."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "target.json"), encoding="utf-8") as file:
        target = json.load(file)
    own = own_ports()
    ports = sorted({port for _, port in target["open"]} - own)
    addresses = [*NAMES, *nearby(target["address"])]
    tried = {
        "own": sorted(own),
        "connected": [[address, port] for port in ports for address in addresses if connects(address, port)],
        "proxy": sorted({str(through_proxy(target["address"], port)) for port in ports}),
        "named": named_reached(target["named"]),
        "overheard": overheard(set(ports)),
        "folders": seen(target["folders"]),
        "num": len(ports) * len(addresses),
    }
    print(f"TRIED {json.dumps(tried)}", flush=True)


main()
