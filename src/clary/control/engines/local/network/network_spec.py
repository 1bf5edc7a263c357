"""The specification of a job's network, and the files that the engine and the anchor exchange.

Where: `anchors` writes the spec into the pool's folder, the anchor (`fabric`) reads it and answers with the ready
file. Standard library only.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

SPEC_FILE = "network.json"
READY_FILE = "network-ready.json"
RELEASED_FILE = "released"
LOOPBACK = "127.0.0.1"


class HostSpec(NamedTuple):
    """One host of the network."""

    name: str
    address: str
    rate_mbit_s: float | None
    delay_ms: float
    loss_percent: float


class RelaySpec(NamedTuple):
    """A port that leads out of every host, on one address inside the host, by default 127.0.0.1."""

    port: int
    target_address: str
    target_port: int
    address: str = LOOPBACK  # added to the host, unless it is a loopback address, which every host has
    names: Sequence[str] = ()  # names of `address` in the host's /etc/hosts
    rides_restarts: bool = True  # whether refused connections are retried, because the target is the service
    source_address: str = ""  # source of the outgoing connections, used by this network alone; empty: the machine's


class NetworkSpec(NamedTuple):
    """The whole network of one job."""

    folder: str
    prefix_length: int
    hosts: tuple[HostSpec, ...]
    relays: tuple[RelaySpec, ...]

    @property
    def relayed_names(self) -> dict[str, str]:
        """Name -> address, for /etc/hosts of every host."""
        return {name: relay.address for relay in self.relays for name in relay.names}

    @property
    def is_switched_by_us(self) -> bool:
        """Whether links need delay or loss, which a bridge cannot make."""
        return any(host.delay_ms or host.loss_percent for host in self.hosts)


def read_spec(path: str) -> NetworkSpec:
    """Read a file of `write_spec`; raises OSError, and ValueError, KeyError or TypeError for other content."""
    data = read_document(path)
    return NetworkSpec(
        folder=data["folder"],
        prefix_length=data["prefix_length"],
        hosts=tuple(HostSpec(**host) for host in data["hosts"]),
        relays=tuple(RelaySpec(**relay) for relay in data["relays"]),
    )


def read_document(path: str) -> dict[str, Any]:
    """Read a JSON object; raises OSError, and ValueError for other content."""
    with open(path, encoding="utf-8") as file:
        data = json.load(file)
    if not isinstance(data, dict):
        raise ValueError(f"{path}: expected a JSON object")
    return data


def write_spec(spec: NetworkSpec) -> str:
    """Write the spec into its folder and return the file's path."""
    path = os.path.join(spec.folder, SPEC_FILE)
    document = {
        "folder": spec.folder,
        "prefix_length": spec.prefix_length,
        "hosts": [host._asdict() for host in spec.hosts],
        "relays": [relay._asdict() for relay in spec.relays],
    }
    write_json(path, document)
    return path


def write_json(path: str, document: Any) -> None:
    """Replace a file by a JSON document: a reader sees the old or the new document, also after a crash."""
    partial = f"{path}.{os.getpid()}-{threading.get_native_id()}.partial"
    with open(partial, "w", encoding="utf-8") as file:
        json.dump(document, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
