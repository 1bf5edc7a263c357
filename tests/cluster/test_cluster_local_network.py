"""Real networks of the local engine: namespaces, links, relay, faults, and no leftovers. Needs root."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from network_hosts import ECHO_SERVER, SOURCE, Host, LocalHosts, Server, plan_of

import clary
from clary.base.errors import EngineError
from clary.base.processes import ProcessId
from clary.contract.launch_plan import Isolation, Link
from clary.control.engines.local import attempt_record
from clary.control.engines.local.network import fabric, network_spec
from clary.control.engines.local.network_faults import partition
from clary.control.settings import Settings

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces of several hosts: needs root"),
]


SAY = """
with socket.create_connection(("{address}", 7777), timeout=10) as connection:
    connection.sendall(b"{text}")
    print(connection.recv(100).decode())
"""


@pytest.fixture
async def engine(tmp_path):
    engine = LocalHosts(Settings(home=str(tmp_path)), "http://127.0.0.1:4570")
    yield engine
    for folder in (tmp_path / "jobs").glob("*/*"):
        await engine.end_attempt(folder.parent.name, int(folder.name))
    assert engine._children == {}
    assert await engine.leftovers() == []


def anchor_of(plan):
    return attempt_record.read_ready(Path(plan.pool_folder)).anchor


async def test_root_gets_isolation_by_namespaces(engine):
    assert engine.capacity().isolation is Isolation.NAMESPACES


async def test_every_host_reaches_every_other_on_eth0_and_nothing_else(engine):
    plan = await engine.launch(plan_of(3))
    assert [host.address for host in plan.hosts] == ["10.77.0.1", "10.77.0.2", "10.77.0.3"]
    hosts = [Host(plan, host.name) for host in plan.hosts]
    for server in hosts:
        with Server(server, ECHO_SERVER):
            for client in hosts:
                assert await client.run(SAY.format(address=server.address, text="hello")) == "hello"
    interfaces = await hosts[0].run("print(*sorted(name for _, name in socket.if_nameindex()))")
    assert {"eth0", "lo"} <= set(interfaces.split())
    routes = await hosts[0].run("print(open('/proc/thread-self/net/route').read())")
    destinations = [line.split()[1] for line in routes.splitlines()[1:]]
    assert destinations == ["00004D0A"]  # 10.77.0.0, little-endian: the job's own network, and no default route
    unreachable = (
        "s = socket.socket(); s.settimeout(5)\ntry: s.connect(('192.0.2.1', 80))\nexcept OSError as e: print(e.errno)"
    )
    assert await hosts[0].run(unreachable) == "101"  # ENETUNREACH
    assert "inet6" not in await hosts[0].run("print(open('/proc/thread-self/net/if_inet6').read().replace('lo', ''))")
    eth0 = "print(sum('eth0' in line for line in open('/proc/thread-self/net/if_inet6')))"
    assert await hosts[0].run(eth0) == "0"


async def test_two_jobs_with_the_same_addresses_and_ports_are_isolated(engine):
    one, two = await asyncio.gather(
        engine.launch(plan_of(2, job_name="one")), engine.launch(plan_of(2, job_name="two"))
    )
    assert one.hosts[0].address == two.hosts[0].address
    assert one.network.master_port == two.network.master_port == 7777
    first, second = Host(one, "algo-1"), Host(two, "algo-1")
    named = ECHO_SERVER.replace("connection.sendall(data)", "connection.sendall(b'job {name}')")
    with Server(first, named.format(name="one")), Server(second, named.format(name="two")):
        assert await Host(one, "algo-2").run(SAY.format(address=first.address, text="?")) == "job one"
        assert await Host(two, "algo-2").run(SAY.format(address=first.address, text="?")) == "job two"


async def test_a_second_launch_even_by_another_service_returns_the_same_network(engine, tmp_path):
    plan = await engine.launch(plan_of(2))
    assert await engine.launch(plan_of(2)) == plan
    another = LocalHosts(Settings(home=str(tmp_path)), "http://127.0.0.1:4570")
    assert await another.launch(plan_of(2)) == plan


async def test_two_services_that_launch_at_once_make_one_network(engine, tmp_path):
    another = LocalHosts(Settings(home=str(tmp_path)), "http://127.0.0.1:4570")
    first, second = await asyncio.gather(engine.launch(plan_of(2)), another.launch(plan_of(2)))
    assert first.network.anchor_pid == second.network.anchor_pid
    assert another._children.keys() | engine._children.keys() >= {first.network.anchor_pid}
    async with asyncio.timeout(10):
        while len(another._children) + len(engine._children) > 1:  # the anchor that started second exits
            await asyncio.sleep(0.02)
            another._reap()
            engine._reap()
    engine._children |= another._children


SINK_SERVER = """
server = socket.create_server(("0.0.0.0", 7777))
print("listening", flush=True)
while True:
    connection, _ = server.accept()
    count, began = 0, time.monotonic()
    while data := connection.recv(1 << 20):
        count += len(data)
    connection.sendall(str(count * 8 / (time.monotonic() - began) / 1e6).encode())
    connection.close()
"""
SEND = """
with socket.create_connection(("{address}", 7777), timeout=20) as connection:
    connection.sendall(bytes({size}))
    connection.shutdown(socket.SHUT_WR)
    print(connection.recv(100).decode())
"""


@pytest.mark.parametrize("delay_ms", [0.0, 1.0])
async def test_rate_of_links_is_kept(engine, delay_ms):
    plan = await engine.launch(plan_of(2, link=Link(rate_mbit_s=200, delay_ms=delay_ms)))
    with Server(Host(plan, "algo-1"), SINK_SERVER):
        mbit_s = float(await Host(plan, "algo-2").run(SEND.format(address="10.77.0.1", size=20_000_000)))
    assert 120 < mbit_s < 215


ROUND_TRIPS = """
with socket.create_connection(("{address}", 7777), timeout=10) as connection:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    times = []
    for _ in range(41):
        began = time.monotonic()
        connection.sendall(b"x")
        connection.recv(1)
        times.append((time.monotonic() - began) * 1000)
    print(sorted(times)[20])
"""


async def test_delay_of_links_is_one_way(engine):
    plan = await engine.launch(plan_of(2, link=Link(delay_ms=5)))
    with Server(Host(plan, "algo-1"), ECHO_SERVER):
        median_ms = float(await Host(plan, "algo-2").run(ROUND_TRIPS.format(address="10.77.0.1")))
    assert 10 <= median_ms < 15


async def test_whole_segments_pass_the_delaying_switch_unharmed(engine):
    plan = await engine.launch(plan_of(2, link=Link(delay_ms=0.5)))
    send = """
import hashlib
data = os.urandom(8_000_000)
with socket.create_connection(("10.77.0.1", 7777), timeout=20) as connection:
    connection.sendall(data)
    connection.shutdown(socket.SHUT_WR)
    print(connection.recv(100).decode() == hashlib.sha256(data).hexdigest())
"""
    digest = SINK_SERVER.replace("count, began = 0, time.monotonic()", "import hashlib; digest = hashlib.sha256()")
    digest = digest.replace("count += len(data)", "digest.update(data)")
    digest = digest.replace("str(count * 8 / (time.monotonic() - began) / 1e6)", "digest.hexdigest()")
    with Server(Host(plan, "algo-1"), digest):
        assert await Host(plan, "algo-2").run(send) == "True"


async def test_packets_are_lost_at_the_requested_rate(engine):
    plan = await engine.launch(plan_of(2, link=Link(loss_percent=20)))
    count = """
receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
receiver.bind(("0.0.0.0", 7777))
print("listening", flush=True)
receiver.settimeout(10)
seen = set()
try:
    while b"end" not in (data := receiver.recv(100)):
        seen.add(data)
        receiver.settimeout(2)
except TimeoutError:
    pass
print(len(seen), flush=True)
"""
    send = """
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for number in range(2000):
    sender.sendto(b"%d" % number, ("10.77.0.1", 7777))
    if number % 20 == 0:
        time.sleep(0.02)  # on a machine at work the receiver may be late, and its socket holds some 200 packets
for _ in range(20):
    sender.sendto(b"end", ("10.77.0.1", 7777))
"""
    server = Host(plan, "algo-1").start(count)
    assert server.stdout.readline() == "listening\n"
    await Host(plan, "algo-2").run(send)
    output, _ = await asyncio.to_thread(server.communicate, timeout=30)
    # The first frames can be lost to address resolution; 2000 draws at 20 % stay within 80 of 1600 (4.5 sigma).
    assert 1480 < int(output) < 1680


@pytest.mark.parametrize("link", [Link(), Link(delay_ms=0.2)])
async def test_a_partitioned_host_receives_no_packets_until_it_is_reconnected(engine, link):
    plan = await engine.launch(plan_of(2, link=link))
    ask = """
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(0.5)
for _ in range({tries}):
    s.sendto(b"x", ("10.77.0.1", 7777))
    try:
        print(s.recv(1).decode()); break
    except OSError:
        continue
else:
    print("silence")
"""
    answer = """
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("0.0.0.0", 7777))
print("listening", flush=True)
while True:
    data, peer = s.recvfrom(10)
    s.sendto(data, peer)
"""
    with Server(Host(plan, "algo-1"), answer):
        client = Host(plan, "algo-2")
        assert await client.run(ask.format(tries=10)) == "x"
        await partition(plan.pool_folder, "algo-2", up=False)
        await asyncio.sleep(0.2)  # the switch polls for cuts every 50 ms
        assert await client.run(ask.format(tries=2)) == "silence"
        await partition(plan.pool_folder, "algo-2", up=True)
        assert await client.run(ask.format(tries=20)) == "x"
    with pytest.raises(EngineError, match="no host 'algo-9'"):
        await partition(plan.pool_folder, "algo-9", up=False)


class MachineServer:
    """A server on the machine's own 127.0.0.1, like the service; `handle` serves each connection."""

    def __init__(self, handle, port=0):
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port = self._listener.getsockname()[1]
        self._handle = handle
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _serve(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(20)
                self._handle(connection)


def read_all(connection):
    data = bytearray()
    while part := connection.recv(1 << 20):
        data += part
    return bytes(data)


ASK_SERVICE = """
with socket.create_connection(("127.0.0.1", {port}), timeout=20) as connection:
    connection.sendall({request})
    connection.shutdown(socket.SHUT_WR)
    data = bytearray()
    while part := connection.recv(1 << 20):
        data += part
    print(len(data), data[:20].decode())
"""


def engine_for(port, tmp_path):
    return LocalHosts(Settings(home=str(tmp_path)), f"http://127.0.0.1:{port}")


async def test_hosts_reach_the_service_under_its_own_url_with_half_close_both_ways(tmp_path):
    def reverse(connection):
        connection.sendall(read_all(connection)[::-1])

    with MachineServer(reverse) as server:
        engine = engine_for(server.port, tmp_path)
        plan = await engine.launch(plan_of(2))
        try:
            for name in ("algo-1", "algo-2"):
                asked = ASK_SERVICE.format(port=server.port, request="b'abc' + bytes(5_000_000) + b'xyz'")
                assert (await Host(plan, name).run(asked)).startswith("5000006 zyx")
        finally:
            await engine.end_attempt(plan.job_name, plan.attempt)


async def test_job_with_network_isolation_does_not_reach_the_service(engine):
    plan = await engine.launch(plan_of(1, network_isolation=True))
    ask = "s = socket.socket()\ntry: s.connect(('127.0.0.1', 4570))\nexcept ConnectionRefusedError: print('refused')"
    assert await Host(plan, "algo-1").run(ask) == "refused"


async def test_an_aborted_response_of_the_service_is_a_reset_inside_the_host(tmp_path):
    def abort(connection):
        connection.sendall(b"half of it")
        connection.recv(1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    with MachineServer(abort) as server:
        engine = engine_for(server.port, tmp_path)
        plan = await engine.launch(plan_of(1))
        try:
            ask = f"""
with socket.create_connection(("127.0.0.1", {server.port}), timeout=20) as connection:
    print(connection.recv(100).decode())
    connection.sendall(b"x")
    try:
        print("end", connection.recv(100))
    except ConnectionResetError:
        print("reset")
"""
            assert (await Host(plan, "algo-1").run(ask)).split("\n") == ["half of it", "reset"]
        finally:
            await engine.end_attempt(plan.job_name, plan.attempt)


async def test_restart_of_the_service_goes_unnoticed_inside(tmp_path):
    with MachineServer(lambda connection: None) as server:
        port = server.port
    engine = engine_for(port, tmp_path)
    plan = await engine.launch(plan_of(1))
    try:
        asking = asyncio.create_task(Host(plan, "algo-1").run(ASK_SERVICE.format(port=port, request="b'x'")))
        await asyncio.sleep(0.3)
        with MachineServer(lambda connection: connection.sendall(read_all(connection)), port) as server:
            assert await asking == "1 x"
    finally:
        await engine.end_attempt(plan.job_name, plan.attempt)


async def test_relay_moves_more_than_300_megabytes_a_second(tmp_path):
    size = 400_000_000

    def drain(connection):
        buffer, count = bytearray(1 << 20), 0
        while number := connection.recv_into(buffer):
            count += number
        connection.sendall(str(count).encode())

    with MachineServer(drain) as server:
        engine = engine_for(server.port, tmp_path)
        plan = await engine.launch(plan_of(1))
        try:
            send = f"""
block, began = bytes(1 << 20), time.monotonic()
with socket.create_connection(("127.0.0.1", {server.port}), timeout=30) as connection:
    for _ in range({size} >> 20):
        connection.sendall(block)
    connection.shutdown(socket.SHUT_WR)
    count = int(connection.recv(100))
print(count / (time.monotonic() - began) / 1e6)
"""
            mb_s = float(await Host(plan, "algo-1").run(send))
        finally:
            await engine.end_attempt(plan.job_name, plan.attempt)
    # Measured: 800 MB/s with three processes on 2 idle cores; a third of that on a loaded machine.
    assert mb_s > (300 if os.getloadavg()[0] < 1 else 100)


def interfaces():
    return {name for _, name in socket.if_nameindex()}


@pytest.mark.parametrize("link", [Link(), Link(delay_ms=1)])
async def test_killed_anchor_leaves_no_process_or_namespace(engine, link):
    before, mounts = interfaces(), Path("/proc/self/mountinfo").read_text()
    plan = await engine.launch(plan_of(3, link=link))
    anchor = anchor_of(plan)
    inodes = {os.stat(path).st_ino for path in plan.network.namespace_paths.values()}
    assert len(inodes) == 3
    assert interfaces() == before
    children = Path(f"/proc/{anchor.pid}/task/{anchor.pid}/children").read_text().split()
    helpers = [ProcessId.of(int(pid)) for pid in children]
    os.kill(anchor.pid, signal.SIGKILL)
    async with asyncio.timeout(10):
        while anchor.is_alive() or any(helper.is_alive() for helper in helpers):
            await asyncio.sleep(0.02)
    assert not inodes & {inode_of(entry) for entry in Path("/proc").glob("[0-9]*/ns/net")}
    assert interfaces() == before
    assert Path("/proc/self/mountinfo").read_text() == mounts
    assert not any(Path(path).exists() for path in plan.network.namespace_paths.values())


def inode_of(path):
    try:
        return path.stat().st_ino
    except OSError:
        return 0


async def test_anchor_exits_when_its_folder_is_removed_or_released(engine, tmp_path):
    one = await engine.launch(plan_of(1, job_name="one"))
    two = await engine.launch(plan_of(1, job_name="two"))
    anchors = [anchor_of(one), anchor_of(two)]
    shutil.rmtree(one.pool_folder)
    (Path(two.pool_folder) / "released").touch()
    async with asyncio.timeout(10):
        while any(anchor.is_alive() for anchor in anchors):
            await asyncio.sleep(0.05)
            engine._reap()


async def test_release_ends_processes_still_running_inside_the_hosts(engine):
    plan = await engine.launch(plan_of(2))
    stray = Host(plan, "algo-2").start("print('listening', flush=True); time.sleep(300)")
    assert stray.stdout.readline() == "listening\n"
    released = await engine.end_attempt(plan.job_name, plan.attempt)
    assert len(released.killed) == 1
    assert await asyncio.to_thread(stray.wait, 10) == -signal.SIGKILL
    stray.communicate()


async def test_dead_tap_switch_is_started_again(engine):
    plan = await engine.launch(plan_of(2, link=Link(delay_ms=0.1)))
    anchor = anchor_of(plan)
    children = Path(f"/proc/{anchor.pid}/task/{anchor.pid}/children")
    os.kill(int(children.read_text()), signal.SIGKILL)
    with Server(Host(plan, "algo-1"), ECHO_SERVER):
        assert await Host(plan, "algo-2").run(SAY.format(address="10.77.0.1", text="again")) == "again"


async def test_an_error_of_network_creation_gives_the_reason(engine, tmp_path):
    folder = tmp_path / "jobs" / "pool_broken" / "1"
    (folder / "network-ready.json").mkdir(parents=True)  # so that the anchor cannot write to it
    with pytest.raises(EngineError, match=r"(?s)anchor of the job's network ended with exit code 1: .*IsADirectory"):
        await engine.launch(plan_of(1, job_name="broken"))
    (folder / "network-ready.json").rmdir()
    assert (await engine.launch(plan_of(1, job_name="broken"))).network.anchor_pid


async def test_a_port_that_is_relayed_twice_gives_an_error_with_port_and_host(tmp_path):
    folder = tmp_path / "jobs" / "job-1" / "1"
    folder.mkdir(parents=True)
    relay = network_spec.RelaySpec(4570, "127.0.0.1", 4570)
    spec = network_spec.NetworkSpec(
        str(folder), 24, (network_spec.HostSpec("algo-1", "10.77.0.1", None, 0.0, 0.0),), (relay, relay)
    )
    command = [sys.executable, "-S", "-m", "clary.control.engines.local.network.fabric", network_spec.write_spec(spec)]
    done = await asyncio.to_thread(subprocess.run, command, env={"PYTHONPATH": SOURCE}, timeout=20, check=False)
    assert done.returncode == fabric.EXIT_FAILED
    assert attempt_record.read_ready(folder).error == "port 4570 of algo-1: Address already in use"


UNPRIVILEGED = """
import asyncio, os, sys
sys.path.insert(0, sys.argv[1])
from clary.contract.launch_plan import Isolation
from clary.base.errors import EngineError
from clary.control.engines.local.engine import LocalEngine
from clary.control.engines.local.network_faults import partition
from clary.control.settings import Settings
from clary.testing.launch_plans import make_hosts, make_plan

async def main():
    engine = LocalEngine(Settings(home=sys.argv[2]), "http://127.0.0.1:4570")
    capacity = engine.capacity()
    print(capacity.isolation.value, *capacity.gaps)
    folder = f"{sys.argv[2]}/jobs/pool_0123456789ab/1"
    plan = await engine.launch(make_plan(hosts=make_hosts(2), pool_folder=folder))
    print(plan.network.user_namespace_path is not None)
    join = '''
import os, socket, sys
sys.path.insert(0, sys.argv[1])
from clary.control.engines.local.network import namespaces
network = os.open(sys.argv[3], os.O_RDONLY)
namespaces.setns(os.open(sys.argv[2], os.O_RDONLY), namespaces.CLONE_NEWUSER)
namespaces.setns(network, namespaces.CLONE_NEWNET)
print(os.geteuid(), flush=True)
'''
    server_code = '''
server = socket.create_server(("0.0.0.0", 7777))
print("listening", flush=True)
server.accept()[0].sendall(b"hello")
'''
    client_code = 'print(socket.create_connection(("10.77.0.1", 7777), timeout=10).recv(10).decode())'
    def start(host, code):
        return asyncio.create_subprocess_exec(
            sys.executable, "-S", "-c", join + code, sys.argv[1], plan.network.user_namespace_path,
            plan.network.namespace_paths[host], stdout=asyncio.subprocess.PIPE)
    server = await start("algo-1", server_code)
    print((await server.stdout.readline()).decode().strip(), (await server.stdout.readline()).decode().strip())
    client = await start("algo-2", client_code)
    print((await client.communicate())[0].decode().split()[1])
    await server.wait()
    await partition(plan.pool_folder, "algo-2", up=False)
    await partition(plan.pool_folder, "algo-2", up=True)
    stray = await start("algo-2", "import time; time.sleep(300)")
    await stray.stdout.readline()
    released = await engine.end(plan.pool)
    await engine.end_attempt(plan.job_name, plan.attempt)
    print(len(released.killed), await stray.wait())

asyncio.run(main())
"""
NOBODY = 65534


def interpreter_of_nobody():
    for candidate in (sys.executable, "/usr/bin/python3"):
        try:
            done = subprocess.run(
                [candidate, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"],
                user=NOBODY,
                group=NOBODY,
                extra_groups=[],
                cwd="/",
                check=False,
            )
        except OSError:
            continue
        if done.returncode == 0:
            return candidate
    return None


def test_without_root_hosts_live_in_a_user_namespace():
    python = interpreter_of_nobody()
    if python is None:
        pytest.skip("no Python 3.11 that uid 65534 may run")
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        shutil.copytree(
            Path(clary.__file__).parent, folder / "source" / "clary", ignore=shutil.ignore_patterns("*.pyc")
        )
        home = folder / "home"
        home.mkdir()
        os.chown(home, NOBODY, NOBODY)
        folder.chmod(0o755)
        done = subprocess.run(
            [python, "-B", "-c", UNPRIVILEGED, str(folder / "source"), str(home)],
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            cwd="/",
            env={"PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout + done.stderr
    if lines[0].startswith("processes"):
        pytest.skip(f"this machine refuses user namespaces: {lines[0]}")
    assert lines[0].startswith("namespaces Hosts run in a user namespace")
    assert lines[1:] == ["True", "0 listening", "hello", "1 -9"]
