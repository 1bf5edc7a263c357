"""The anchor of one job's network: a process that makes the hosts' network namespaces and holds them while it lives.

Run: `python -m clary.control.engines.local.network.fabric FOLDER/network.json`; `--probe` instead of a file makes a
network with one host, prints the result as JSON on stdout, and exits. Standard library only.

    host algo-1              switch (own namespace)            host algo-2
    eth0 10.77.0.1 --veth--> p0 -- br0 -- p1 <--veth-- eth0 10.77.0.2        links without delay and loss
    eth0 10.77.0.1 --TAP---> tap_switch, a child process <--TAP-- eth0 10.77.0.2        links with delay or loss
    127.0.0.1:4570 --relay--> the service, from the anchor's own namespace

No host has a route to anything but its job's hosts. The machine's namespace and /run/netns are left unchanged: other
processes join through /proc/ANCHOR/fd/N, so when the anchor ends, by itself or killed, the whole network vanishes.
Without root the anchor is root of a user namespace of its own. As root, the anchor makes a user namespace for the
programs, which owns their network namespaces. The anchor itself stays in the machine's user namespace. The anchor
outlives the service, and ends when the file `released` appears in its folder or the folder vanishes.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any

from clary.base.processes import ProcessId
from clary.control.engines.local.network.network_building import FabricError, Network, build, hardware_address
from clary.control.engines.local.network.network_spec import (
    READY_FILE,
    RELEASED_FILE,
    HostSpec,
    NetworkSpec,
    read_document,
    read_spec,
    write_json,
)

LOCK_FILE = "anchor.lock"
PARTITIONS_FILE = "partitions.json"

EXIT_FAILED = 1  # the ready file has the reason
EXIT_HELD = 3  # another anchor holds this folder

RELEASE_POLL_S = 2.0
MAX_SWITCH_RESTARTS = 5


def main(arguments: list[str]) -> int:
    """Build the network of the spec file named by the only argument, and hold it until it is released."""
    if len(arguments) != 1:
        print("usage: python -m clary.control.engines.local.network.fabric FILE | --probe", file=sys.stderr)
        return 2
    if arguments[0] == "--probe":
        return _probe()
    spec = read_spec(arguments[0])
    lock = open(os.path.join(spec.folder, LOCK_FILE), "w", encoding="ascii")  # noqa: SIM115 - held until the end
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # belongs to this process alone, not to its children
    except BlockingIOError:
        return EXIT_HELD
    own = ProcessId.of(os.getpid())
    assert own is not None, "a running process has an entry in /proc"
    identity = {"pid": own.pid, "started": own.started}
    ready_path = os.path.join(spec.folder, READY_FILE)
    try:
        network = build(spec)
        switch = _SwitchChild(spec, network) if network.ports else None
    except FabricError as error:
        write_json(ready_path, identity | {"error": str(error)})
        return EXIT_FAILED
    ready = {
        "error": None,
        "namespaces": network.host_descriptors,
        "switch": network.switch_descriptor,
        "has_user_namespace": network.has_user_namespace,
        "users": network.users,
        "first_id": network.first_id,
        "is_switched_by_us": spec.is_switched_by_us,
    }
    write_json(ready_path, identity | ready)
    os.chdir("/")
    _hold(spec, network, switch, kept={ready_path: identity | ready, arguments[0]: read_document(arguments[0])})
    return 0


class _SwitchChild:
    """The TAP switch process; it can be restarted if it dies, because the anchor keeps the TAP devices open."""

    def __init__(self, spec: NetworkSpec, network: Network) -> None:
        self._spec = spec
        self._network = network
        self._num_starts = 0
        self.pid = 0
        self._start()

    def restart_if_dead(self) -> None:
        """Restart the switch if it has died. Raises: FabricError, which ends the anchor, after too many deaths."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid == 0:
            return
        os.close(self._stop_write)
        if self._num_starts > MAX_SWITCH_RESTARTS:
            raise FabricError(f"the TAP switch died {self._num_starts} times, last with wait status {status}")
        print(f"the TAP switch died with wait status {status}; starting it again", file=sys.stderr, flush=True)
        self._start()

    def _start(self) -> None:
        # imported late: saves 2 ms when a network without TAP devices starts
        from clary.control.engines.local.network.tap_switch import TapSwitch

        # The pipe closes whenever the anchor ends, even by SIGKILL; the child then exits and releases the devices.
        stop_read, self._stop_write = os.pipe()
        self._num_starts += 1
        pid = os.fork()
        if pid:
            os.close(stop_read)
            self.pid = pid
            return
        code = 1
        try:
            keep = {0, 1, 2, stop_read, *(port.descriptor for port in self._network.ports)}
            for descriptor in _open_descriptors() - keep:
                os.close(descriptor)
            partitions = os.path.join(self._spec.folder, PARTITIONS_FILE)
            TapSwitch(self._network.ports, stop_descriptor=stop_read, partitions_path=partitions).run()
            code = 0
        finally:
            if code:
                import traceback

                traceback.print_exc()
            os._exit(code)


def _open_descriptors() -> set[int]:
    """Return this process's open descriptors, without the descriptor used to list them."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            os.fstat(int(name))
        except OSError:
            continue
        found.add(int(name))
    return found


def _hold(
    spec: NetworkSpec, network: Network, switch: _SwitchChild | None, *, kept: Mapping[str, dict[str, Any]]
) -> None:
    """Serve the relays until the attempt is released.

    Args:
        spec: specification of the network.
        network: the network that was built from it.
        switch: the TAP switch process; None with a kernel bridge.
        kept: path -> content of a file that no other process could restore.
    """
    import asyncio

    _raise_descriptor_limit()
    asyncio.run(_serve(spec, network, switch, kept))


async def _serve(
    spec: NetworkSpec, network: Network, switch: _SwitchChild | None, kept: Mapping[str, dict[str, Any]]
) -> None:
    import asyncio

    # imported late: saves 14 ms in processes that serve no network
    from clary.control.engines.local.network import relay as relays

    tasks = [
        asyncio.create_task(
            relays.serve(
                listener,
                relays.RelayTarget(
                    relay.target_address,
                    relay.target_port,
                    source=relay.source_address,
                    rides_restarts=relay.rides_restarts,
                ),
            )
        )
        for listener, relay in network.listeners
    ]
    if network.links:
        tasks.append(asyncio.create_task(_link_watch(spec, network).run()))
    try:
        while not _is_over(spec.folder):
            if switch is not None:
                switch.restart_if_dead()
            keep_files(kept)
            await asyncio.sleep(RELEASE_POLL_S)
            for task in tasks:
                if task.done():
                    task.result()  # raises the error of a relay or watch that failed: the traceback goes to anchor.log
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def keep_files(kept: Mapping[str, dict[str, Any]]) -> None:
    """Restore deleted or damaged files from their content; on a full disk, a later call retries."""
    for path, document in kept.items():
        try:
            is_there = read_document(path) == document
        except (OSError, ValueError):
            is_there = False
        if not is_there:
            print(f"{path} was deleted or damaged; it is written again", file=sys.stderr, flush=True)
            with contextlib.suppress(OSError):
                write_json(path, document)


def _link_watch(spec: NetworkSpec, network: Network) -> Any:
    # imported late: saves 14 ms when a network without a link watch starts
    from clary.control.engines.local.network.link_watch import CUT_OFF_FILE, LinkWatch

    return LinkWatch(
        [host.name for host in spec.hosts],
        network.links,
        [hardware_address(host.address) for host in spec.hosts],
        path=os.path.join(spec.folder, CUT_OFF_FILE),
        max_delay_s=max(host.delay_ms for host in spec.hosts) / 1000,
    )


def _is_over(folder: str) -> bool:
    return not os.path.isdir(folder) or os.path.exists(os.path.join(folder, RELEASED_FILE))


def _raise_descriptor_limit() -> None:
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _probe() -> int:
    """Build a network with one host as a test, and print the result."""
    started = time.monotonic()
    spec = NetworkSpec("", 24, (HostSpec("probe", "10.77.0.1", 1000.0, 0.0, 0.0),), ())
    answer: dict[str, Any] = {"error": None, "has_user_namespace": False, "why_no_users": ""}
    try:
        network = build(spec)
        answer["has_user_namespace"], answer["why_no_users"] = network.has_user_namespace, network.why_no_users
    except FabricError as error:
        answer["error"] = str(error)
    answer["seconds"] = round(time.monotonic() - started, 3)
    print(json.dumps(answer))
    return EXIT_FAILED if answer["error"] else 0


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C at a service in the foreground must not end the anchors
    sys.exit(main(sys.argv[1:]))
