"""The switch of links with delay: sockets in place of TAP devices, which need root."""

import contextlib
import fcntl
import gc
import os
import resource
import socket
import threading

import pytest

from clary.control.engines.local.network.tap_switch import VNET_HEADER_BYTES, Port, TapSwitch

HIGH = 1024  # the first descriptor that select.select() refuses
MACS = (b"\x02\0\0\0\0\1", b"\x02\0\0\0\0\2")
WAIT_S = 20.0


@pytest.fixture
def high_numbers():
    """Allow this process descriptors from `HIGH` on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2 * HIGH:
        pytest.skip(f"a process may have {hard} descriptors here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * HIGH), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def moved_up(descriptor: int) -> int:
    high = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, HIGH)
    os.close(descriptor)
    return high


def test_ports_with_descriptors_above_1023_are_switched(high_numbers, tmp_path):
    with contextlib.ExitStack() as stack:
        hosts, ports = [], []
        for index, mac in enumerate(MACS):
            host, device = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
            hosts.append(stack.enter_context(host))
            device.setblocking(False)
            descriptor = moved_up(device.detach())
            ports.append(
                Port(name=f"algo-{index + 1}", descriptor=descriptor, mac=mac, rate_bytes_s=None, delay_ns=0, loss=0.0)
            )
        stop_read, stop_write = os.pipe()
        switch = TapSwitch(ports, stop_descriptor=moved_up(stop_read), partitions_path=str(tmp_path / "none"))
        running = threading.Thread(target=switch.run)
        running.start()
        try:
            hosts[1].settimeout(WAIT_S)
            frame = bytes(VNET_HEADER_BYTES) + MACS[1] + MACS[0] + b"data"
            hosts[0].send(frame)
            assert hosts[1].recv(1000) == frame
        finally:
            os.close(stop_write)
            running.join(WAIT_S)
            gc.enable()  # the switch disables it, because in the product the switch is a separate process
            for descriptor in (switch._stop, *(port.descriptor for port in switch._ports)):
                os.close(descriptor)
        assert not running.is_alive()
