"""Discovery of the job's processes by `jax.distributed.initialize()` without arguments.

Where: `clary_rank` calls `install` before it runs a program, and `part_from_peers` when a program has failed. jax reads
the coordinator's address from the environment, but the number of processes only from the kinds of cluster that it
knows. When jax is imported, a class of ours becomes the first kind. It precedes Open MPI, Slurm and Kubernetes, whose
variables may describe the cluster under the job's hosts. A program without jax is not affected, and arguments of
`initialize` take precedence. The coordinator accepts every client without authentication. By default it listens on
every address of the machine; if its address is loopback, as for hosts that share a machine's network, this module
restricts it to loopback. It runs in the user's environment: Python 3.8 or later, with the standard library only,
without clary.
Source: `_src/clusters/cluster.py` of jax 0.4.20, 0.4.38 and 0.10.2, which tries subclasses of `ClusterEnv` in the order
of a list.
"""

from __future__ import annotations

import atexit
import importlib
import os
import sys
import types

TYPE_CHECKING = False  # as in `typing`; see `clary_imports`
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_MODULE = "jax._src.clusters"
_ADDRESS = "JAX_COORDINATOR_ADDRESS"
_BIND_ADDRESS = "JAX_COORDINATOR_BIND_ADDRESS"  # jax reads this variable after it has tried its kinds of cluster
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_LAST_PORT = 65535
# Variables of torchrun, mpirun and the job's launcher with the number of processes and this process's index. A rank
# started inside a host's process inherits the launcher's variables, so the launcher's variables come last.
_NUMBERS = (
    ("WORLD_SIZE", "RANK"),
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID"),
)
_LOCAL_NUMBERS = (
    ("LOCAL_WORLD_SIZE", "LOCAL_RANK"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
)


def install() -> None:
    """Register our class when jax is imported, or at once if it is already imported; a second call does nothing."""
    importlib.import_module("clary_imports").when_imported(_MODULE, register)  # module in this file's folder


def register(clusters: types.ModuleType) -> None:
    """Insert a class of ours before jax's own kinds of cluster.

    A jax version with another list of clusters is left unchanged, with a log line: programs without `initialize` still
    work.

    Args:
        clusters: jax's module of clusters.
    """
    try:
        base = clusters.ClusterEnv
        kinds = base._cluster_types  # the list that jax tries in order; it has no public name
        if any(kind.__name__ == "ClaryCluster" for kind in kinds):
            return
        own = type("ClaryCluster", (base,), {"name": "clary", "opt_in_only_method": False, **_answers()})
        if own in kinds:
            kinds.remove(own)  # a new subclass is appended at the end
        kinds.insert(0, own)
        _keep_coordinator_on_loopback(base)
    except Exception as error:  # noqa: BLE001 - boundary: somebody else's module
        print(
            f"clary: this version of jax is not known; jax.distributed.initialize() needs arguments here: {error!r}",
            file=sys.stderr,
            flush=True,
        )


def _keep_coordinator_on_loopback(base: Any) -> None:
    """Restrict jax's coordinator to loopback if its address is loopback."""
    ask = base.auto_detect_unset_distributed_params
    told: list[str] = []  # addresses that this function has set; a second `initialize` may use another address

    def ask_and_bind(*arguments: object, **options: object) -> Any:
        found = ask(*arguments, **options)
        if os.environ.get(_BIND_ADDRESS, "") in ("", *told):
            os.environ.pop(_BIND_ADDRESS, None)
            if str(found[0]).rpartition(":")[0] in _LOOPBACK:
                told.append(str(found[0]))
                os.environ[_BIND_ADDRESS] = str(found[0])
        return found

    base.auto_detect_unset_distributed_params = ask_and_bind


def part_from_peers() -> bool:
    """Let a failed process of jax end without a wait for its peers; return whether it was connected to them.

    The peers wait in a collective for this process, and jax waits for the peers, up to 300 s, in an `atexit` function
    and again when the interpreter destroys jax's client. Meanwhile the failure would stay unnoticed.
    """
    try:
        if sys.modules["jax._src.distributed"].global_state.client is None:
            return False
        atexit.unregister(sys.modules["jax._src.api"].clean_up)
    except (KeyError, AttributeError):  # no jax, or another version
        return False
    return True


def coordinator_address() -> str | None:
    """Return host:port of jax's coordinator (under torchrun, the store's port + 1); None if unknown."""
    address = os.environ.get(_ADDRESS)
    if address:
        return address
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT", "")
    if not host or not _is_number(port) or int(port) >= _LAST_PORT:
        return None
    return f"[{host}]:{int(port) + 1}" if ":" in host else f"{host}:{int(port) + 1}"


def process_numbers() -> tuple[int, int] | None:
    """Return the number of processes and this process's index; None if unknown."""
    return _first_pair(_NUMBERS)


def local_device() -> int | None:
    """Return the index of this process's GPU on its host; None (all GPUs) if the host has no other process."""
    pair = _first_pair(_LOCAL_NUMBERS)
    return pair[1] if pair is not None and pair[0] > 1 else None


def _answers() -> dict[str, object]:
    """Return the methods that jax calls; older versions of jax pass fewer arguments."""

    def address(_: type, /, *arguments: object, **options: object) -> str:
        return coordinator_address() or ""

    return {
        "is_env_present": classmethod(lambda _: coordinator_address() is not None and process_numbers() is not None),
        "get_coordinator_address": classmethod(address),
        "get_process_count": classmethod(lambda _: (process_numbers() or (1, 0))[0]),
        "get_process_id": classmethod(lambda _: (process_numbers() or (1, 0))[1]),
        "get_local_process_id": classmethod(lambda _: local_device()),
    }


def _first_pair(names: Sequence[tuple[str, str]]) -> tuple[int, int] | None:
    for size, own in names:
        values = os.environ.get(size, ""), os.environ.get(own, "")
        if all(map(_is_number, values)) and int(values[1]) < int(values[0]):
            return int(values[0]), int(values[1])
    return None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()
