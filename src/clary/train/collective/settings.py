"""Settings of collectives: each declared once, read from the environment of a rank.

Where: `communicator.open_group` and the adapters read them when a group is formed; lower modules get them from there.
An argument of a caller overrides the settings. `VARIABLES` lists the same settings for the documentation.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

MIB = 1 << 20
_PAGE_BYTES = 4096
_MAX_SLOT_BYTES = 1 << 30
_MAX_SECONDS = 1e6
_MAX_PORT = 65535
_MICROSECONDS = 1e6  # per second
_BYTES_PER_GBIT = 1e9 / 8
_LINK_PARTS = ("latency_us", "gbit")


@dataclass(frozen=True)
class Link:
    """Speed of the link between hosts, for the cost model.

    It is never measured, so that all runs make the same choices.
    """

    latency_s: float
    bytes_per_s: float


@dataclass(frozen=True)
class Variable:
    """One setting, for the documentation.

    Args:
        name: name of the environment variable.
        expects: description of valid values, with the unit.
        default: the default in the variable's spelling.
    """

    name: str
    expects: str
    default: str
    meaning: str


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= _MAX_SECONDS:
        raise ValueError(text)
    return value


def _slot_bytes(text: str) -> int:
    value = int(text)
    if not 0 < value <= _MAX_SLOT_BYTES or value % _PAGE_BYTES:
        raise ValueError(text)
    return value


def _port(text: str) -> int:
    value = int(text)
    if not 0 <= value <= _MAX_PORT:
        raise ValueError(text)
    return value


def _link(text: str) -> Link:
    parts = dict(part.strip().split("=", 1) for part in text.split(","))
    latency_us, gbit = (float(parts.pop(name)) for name in _LINK_PARTS)
    if parts or not (0 <= latency_us < math.inf and 0 < gbit < math.inf):
        raise ValueError(text)
    return Link(latency_us / _MICROSECONDS, gbit * _BYTES_PER_GBIT)


def _text_like(pattern: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(text)
        return text

    return parse


def _text(text: str) -> str:
    return text


def _setting(
    variable: str, default: str, parse: Callable[[str], Any], expects: str, meaning: str, *, is_secret: bool = False
) -> Any:
    metadata = {"variable": Variable(variable, expects, default, meaning), "parse": parse, "is_secret": is_secret}
    return field(default=parse(default), repr=not is_secret, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class CollectiveSettings:
    """All settings of groups; settings marked "the same on all ranks" are compared between ranks."""

    timeout_s: float = _setting(
        "CLARY_COLLECTIVE_TIMEOUT_S",
        "30",
        _seconds,
        "seconds, more than 0",
        "limit of one operation, the longest wait for a peer; in torch the script's limit comes first, else 1800",
    )
    connect_timeout_s: float = _setting(
        "CLARY_COLLECTIVE_CONNECT_TIMEOUT_S",
        "300",
        _seconds,
        "seconds, more than 0",
        "limit of forming a group, from this rank's call; ranks may start late",
    )
    interface: str = _setting(
        "CLARY_COLLECTIVE_INTERFACE",
        "",
        _text_like(r"\S{0,15}"),
        "name of a network interface",
        "interface on which ranks of other hosts reach this one; empty takes the first existing one of "
        "GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME and SM_NETWORK_INTERFACE_NAME, then the one that leads to MASTER_ADDR",
    )
    secret: str = _setting(
        "CLARY_COLLECTIVE_SECRET",
        "",
        _text,
        "text, best 32 random characters or more; the same on all ranks",
        "key by which ranks authenticate each other; if it is empty, rank 0 puts one into the store, and all ranks "
        "trust the store",
        is_secret=True,
    )
    slot_bytes: int = _setting(
        "CLARY_COLLECTIVE_SLOT_BYTES",
        str(MIB),
        _slot_bytes,
        f"bytes, a multiple of {_PAGE_BYTES}, at most {_MAX_SLOT_BYTES}; the same on all ranks",
        "size of one staging slot in memory that ranks of a host share; a rank has three. A group needs 64 bytes for "
        "each of its ranks",
    )
    link: Link = _setting(  # noqa: RUF009 - a Link cannot be changed
        "CLARY_COLLECTIVE_LINK",
        "latency_us=50,gbit=1",
        _link,
        "latency_us=NUMBER,gbit=NUMBER; the same on all ranks",
        "the link between hosts, for the choice of algorithms",
    )
    algorithm: str = _setting(
        "CLARY_COLLECTIVE_ALGORITHM",
        "",
        _text_like("[a-z0-9-]*"),
        "name of an algorithm; the same on all ranks",
        "use this algorithm wherever possible; empty lets the cost model choose",
    )
    congestion: str = _setting(
        "CLARY_COLLECTIVE_CONGESTION",
        "",
        _text_like("[a-z0-9_]{0,15}"),
        "name of an algorithm of the kernel, such as reno or cubic",
        "congestion control of the connections between hosts; empty takes the system's. bbr, where it is the system's, "
        "paces small messages over links with delay",
    )
    core: str = _setting(
        "CLARY_COLLECTIVE_CORE",
        "",
        _text_like("(native|reference)?"),
        "native or reference; the same on all ranks",
        "core to use; empty takes the compiled one if it was built",
    )
    trace: str = _setting(
        "CLARY_COLLECTIVE_TRACE",
        "",
        _text,
        "path of a folder",
        "write a trace of each rank's computation and communication there, in Chrome's format; empty writes none",
    )
    host: str = _setting(
        "CLARY_COLLECTIVE_HOST",
        "",
        _text_like(r"\S{0,100}"),
        "any word",
        "ranks with different words count as ranks of different hosts; for tests",
    )
    port: int = _setting(
        "CLARY_COLLECTIVE_PORT",
        "0",
        _port,
        "0 to 65535",
        "port of the NumPy adapter's store on MASTER_ADDR; 0 takes MASTER_PORT, or MASTER_PORT + 1 where torchrun's "
        "own store listens on MASTER_PORT",
    )
    master_address: str = _setting(
        "MASTER_ADDR",
        "",
        _text_like(r"\S*"),
        "name or address of rank 0's host",
        "set by launchers; host of the store. The default interface is the one that leads to this host",
    )
    gloo_interface: str = _setting(
        "GLOO_SOCKET_IFNAME", "", _text, "names of interfaces", "see CLARY_COLLECTIVE_INTERFACE; the first one counts"
    )
    nccl_interface: str = _setting(
        "NCCL_SOCKET_IFNAME",
        "",
        _text,
        "prefixes of interfaces, =NAME or ^PREFIX",
        "see CLARY_COLLECTIVE_INTERFACE; a value that begins with ^ is ignored",
    )
    sagemaker_interface: str = _setting(
        "SM_NETWORK_INTERFACE_NAME", "", _text, "name of an interface", "see CLARY_COLLECTIVE_INTERFACE"
    )
    sagemaker_host: str = _setting(
        "SM_CURRENT_HOST", "", _text, "name of a host", "name of this host in messages; empty takes its hostname"
    )

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> CollectiveSettings:
        """Read every variable that is set; an empty variable counts as not set.

        Raises: ValueError naming the variable, its value and the expected values.
        """
        values: dict[str, Any] = {}
        for setting in fields(cls):
            variable: Variable = setting.metadata["variable"]
            text = environ.get(variable.name, "").strip()
            if not text:
                continue
            try:
                values[setting.name] = setting.metadata["parse"](text)
            except (ValueError, KeyError):
                shown = "(hidden)" if setting.metadata["is_secret"] else repr(text)
                raise ValueError(f"{variable.name} is {shown}; expected {variable.expects}") from None
        return cls(**values)


VARIABLES: tuple[Variable, ...] = tuple(setting.metadata["variable"] for setting in fields(CollectiveSettings))
