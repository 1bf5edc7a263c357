"""Real egress of hosts: a machine, a cloud and a LAN in separate network namespaces. Needs root.

Everything runs in a child process with its own network namespace, so that a test may use addresses of clouds and of the
internet without harm.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import clary

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces of several machines: needs root"),
    pytest.mark.timeout(120),
]

SOURCE = str(Path(clary.__file__).parent.parent)
WORLD_TIMEOUT_S = 90
SERVER = """
import socket, threading
def serve(family, port):
    server = socket.socket(family)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    server.bind(("" if family == socket.AF_INET else "::", port))
    server.listen(20)
    while True:
        connection, _ = server.accept()
        connection.sendall(b"reached")
        connection.close()
for family in (socket.AF_INET, socket.AF_INET6):
    for port in (22, 80, 443):
        threading.Thread(target=serve, args=(family, port)).start()
print("listening", flush=True)
"""
WORLD = f"""
import asyncio, json, os, socket, subprocess, sys, threading
sys.path.insert(0, {SOURCE!r})
from clary.control.egress.entries import parse_entry
from clary.control.egress.policy import EgressPolicy
from clary.control.engines.local.engine import LocalEngine
from clary.control.server.edge.connect_proxy import ConnectProxy
from clary.control.settings import Settings
from clary.testing.launch_plans import make_hosts, make_plan

def sh(command):
    subprocess.run(command, shell=True, check=True)

sh("ip link set lo up")
other = subprocess.Popen(["unshare", "-n", sys.executable, "-S", "-c", SERVER := {SERVER!r}], stdout=subprocess.PIPE)
assert other.stdout.readline() == b"listening\\n"
inside = f"nsenter -t {{other.pid}} -n"
sh(f"ip link add a0 type veth peer name b0 netns {{other.pid}}")
sh("ip addr add 10.9.0.1/24 dev a0 && ip link set a0 up && ip addr add 8.8.4.4/32 dev lo")
sh("ip -6 addr add fd00:9::1/64 dev a0 nodad")
sh(f"{{inside}} ip addr add 10.9.0.2/24 dev b0 && {{inside}} ip link set lo up && {{inside}} ip link set b0 up")
sh(f"{{inside}} ip -6 addr add fd00:9::2/64 dev b0 nodad")
for address in json.loads(sys.argv[1]):
    family = "-6" if ":" in address else "-4"
    sh(f"{{inside}} ip {{family}} addr add {{address}} dev lo")
sh("ip route add default via 10.9.0.2 && ip -6 route add default via fd00:9::2")

local = socket.create_server(("0.0.0.0", 443))
named = socket.create_server(("127.0.0.1", 7001))
hits = []
def accept(server, label):
    while True:
        connection, _ = server.accept()
        hits.append(label)
        connection.sendall(b"reached")
        connection.close()
for server, label in ((local, "local"), (named, "named")):
    threading.Thread(target=accept, args=(server, label), daemon=True).start()

policy = EgressPolicy(
    has_internet=True,
    reachable=tuple(map(parse_entry, ["192.168.77.5:22", "127.0.0.1:7001", "10.77.9.9:22"])),
    own_ports=frozenset({{4570}}),
)

async def main():
    proxy = ConnectProxy("127.0.0.1", tls_port=4571, own_names=frozenset(), policy=policy)
    port = await proxy.start()
    found = {{}}
    for target in json.loads(sys.argv[2]):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"CONNECT {{target}} HTTP/1.1\\r\\n\\r\\n".encode())
        began = asyncio.get_running_loop().time()
        answer = await asyncio.wait_for(reader.read(), 30)
        took = asyncio.get_running_loop().time() - began
        found[target] = [answer.split()[1].decode(), answer.endswith(b"reached"), took]
        writer.close()
    await proxy.close()
    num_local = hits.count("local")
    engine = LocalEngine(Settings(home=sys.argv[3]), "http://127.0.0.1:4570", egress=policy)
    folder = f"{{sys.argv[3]}}/jobs/pool_{{{{}}}}/1".format
    plan = await engine.launch(make_plan(hosts=make_hosts(1), pool_folder=folder("open")))
    shut = await engine.launch(
        make_plan(hosts=make_hosts(1), job_name="shut", pool_folder=folder("shut"), network_isolation=True)
    )
    def ask(plan, address, port):
        code = f'''
import os, socket, sys
sys.path.insert(0, {SOURCE!r})
from clary.control.engines.local.network import namespaces
namespaces.setns(os.open(sys.argv[1], os.O_RDONLY), namespaces.CLONE_NEWNET)
try:
    print(socket.create_connection(({{address!r}}, {{port}}), timeout=10).recv(10).decode() or "nothing")
except OSError as error:
    print(type(error).__name__)
'''
        namespace = plan.network.namespace_paths["algo-1"]
        return subprocess.run(
            [sys.executable, "-S", "-c", code, namespace], capture_output=True, text=True
        ).stdout.strip()
    places = [("192.168.77.5", 22), ("127.0.0.1", 7001), ("192.168.77.5", 80), ("10.9.0.2", 22), ("8.8.4.4", 443)]
    hosts = {{f"{{address}}:{{port}}": ask(plan, address, port) for address, port in places}}
    isolated = [ask(shut, address, port) for address, port in places]
    interface = subprocess.run(
        ["nsenter", f"--net={{plan.network.namespace_paths['algo-1']}}", "ip", "-4", "-o", "addr", "show", "lo"],
        capture_output=True, text=True,
    ).stdout
    for pool in ("pool_open", "pool_shut"):
        await engine.end(pool)
    await engine.end_attempt("job-1", 1)
    await engine.end_attempt("shut", 1)
    print(json.dumps({{
        "found": found, "num_local": num_local, "hosts": hosts, "isolated": isolated, "lo": interface,
    }}))

try:
    asyncio.run(main())
finally:
    other.kill()
os._exit(0)
"""
ON_THE_LAN = f"""
import asyncio, json, os, socket, subprocess, sys
sys.path.insert(0, {SOURCE!r})
from clary.control.engines.local.engine import LocalEngine
from clary.control.server.edge.connect_proxy import ConnectProxy
from clary.control.server.edge.connection_table import counted_address
from clary.control.settings import Settings
from clary.testing.launch_plans import make_hosts, make_plan

HOST = "10.9.0.1"
made = ("link add a0 type veth peer name b0", "addr add 10.9.0.1/24 dev a0", "link set a0 up", "link set b0 up")
for command in ("link set lo up", *made):
    subprocess.run(["ip", *command.split()], check=True)
FROM_A_HOST = '''
import os, socket, sys
sys.path.insert(0, {SOURCE!r})
from clary.control.engines.local.network import namespaces
namespaces.setns(os.open(sys.argv[1], os.O_RDONLY), namespaces.CLONE_NEWNET)
assert socket.create_connection(("127.0.0.1", int(sys.argv[2])), timeout=10).recv(10) == b"reached"
'''

async def main():
    counted = []
    async def serve(reader, writer):
        counted.append(counted_address(writer.get_extra_info("peername"), writer.get_extra_info("sockname")))
        writer.write(b"reached")
        writer.close()
    server = await asyncio.start_server(serve, HOST, 0)
    port = server.sockets[0].getsockname()[1]
    engine = LocalEngine(Settings(home=sys.argv[1]), f"http://{{HOST}}:{{port}}")
    for name in ("one", "two"):
        folder = f"{{sys.argv[1]}}/jobs/pool_{{name}}/1"
        plan = await engine.launch(make_plan(hosts=make_hosts(1), job_name=name, pool_folder=folder))
        inside = await asyncio.create_subprocess_exec(
            sys.executable, "-S", "-c", FROM_A_HOST, plan.network.namespace_paths["algo-1"], str(port)
        )
        assert await inside.wait() == 0
    reader, _ = await asyncio.open_connection(HOST, port)
    await reader.read()
    proxy = ConnectProxy(HOST, tls_port=port, own_names=frozenset({{"sagemaker.amazonaws.com"}}))
    proxy_port = await proxy.start()
    for source in ("127.64.1.2", HOST):
        reader, writer = await asyncio.open_connection(HOST, proxy_port, local_addr=(source, 0))
        writer.write(b"CONNECT sagemaker.amazonaws.com:443 HTTP/1.1\\r\\n\\r\\n")
        assert (await asyncio.wait_for(reader.readline(), 10)).split()[1] == b"200"
        assert await asyncio.wait_for(reader.readexactly(9), 10) == b"\\r\\nreached"
        writer.close()
    await proxy.close()
    for name in ("one", "two"):
        await engine.end(f"pool_{{name}}")
        await engine.end_attempt(name, 1)
    print(json.dumps(counted))

asyncio.run(main())
"""
CLOUD = ["169.254.169.254/32", "100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32", "192.168.77.5/32"]
CLOUD += ["172.17.0.2/32", "93.184.216.34/32", "fd00:ec2::254/128", "2606:2800:220::1/128", "64:ff9b::a09:2/128"]
REFUSED = [
    *(f"{address}:{port}" for address in ("169.254.169.254", "100.100.100.200", "168.63.129.16") for port in (80, 443)),
    *("192.0.0.192:443", "172.17.0.2:443", "192.168.77.5:443", "192.168.77.5:80", "10.9.0.2:443"),
    *("[fd00:ec2::254]:443", "[64:ff9b::a09:2]:443", "[fe80::1]:443", "[::ffff:169.254.169.254]:443"),
    *("127.0.0.1:443", "localhost:443", "127.0.0.1:7999", "127.0.0.1:4570", "[::ffff:127.0.0.1]:443", "[::]:443"),
    *("0.0.0.0:443", "127.1:443", "0x7f000001:443", "2130706433:443", "2852039166:443", "0177.0.0.1:443"),
    *("10.9.0.1:443", "10.9.0.1:1", "8.8.4.4:443", "8.8.4.4:444", "93.184.216.34:22", "93.184.216.34:80"),
]
REACHED = ["93.184.216.34:443", "[2606:2800:220::1]:443", "192.168.77.5:22", "127.0.0.1:7001"]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    done = subprocess.run(
        [
            *("unshare", "-n", sys.executable, "-c", WORLD),
            *(json.dumps(CLOUD), json.dumps([*REFUSED, *REACHED]), str(tmp_path_factory.mktemp("home"))),
        ],
        capture_output=True,
        text=True,
        timeout=WORLD_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_proxy_reaches_the_internet_and_addresses_that_the_owner_allows(world):
    for target in REACHED:
        assert world["found"][target][:2] == ["200", True], target


def test_the_proxy_refuses_cloud_metadata_lan_and_the_machines_own_addresses(world):
    for target in REFUSED:
        assert world["found"][target][:2] == ["403", False], target
    assert world["num_local"] == 0, "nothing was connected, to be looked at afterwards"


def test_open_and_closed_ports_are_refused_in_the_same_time(world):
    for is_open, is_closed in (("127.0.0.1:443", "127.0.0.1:7999"), ("8.8.4.4:443", "8.8.4.4:444")):
        assert abs(world["found"][is_open][2] - world["found"][is_closed][2]) < 1.0


def test_hosts_reach_only_allowed_places_at_the_places_own_addresses(world):
    assert world["hosts"]["192.168.77.5:22"] == "reached"
    assert world["hosts"]["127.0.0.1:7001"] == "reached"
    assert world["hosts"]["192.168.77.5:80"] == "ConnectionRefusedError"
    assert "reached" not in (world["hosts"]["10.9.0.2:22"], world["hosts"]["8.8.4.4:443"])
    assert "reached" not in world["isolated"], "EnableNetworkIsolation"
    assert "192.168.77.5" not in world["lo"], "programs that ask for their addresses do not see it"


def test_a_service_on_the_lan_tells_jobs_from_its_owner(tmp_path):
    done = subprocess.run(
        ["unshare", "-n", sys.executable, "-c", ON_THE_LAN, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=WORLD_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    one, two, owner, job_by_proxy, owner_by_proxy = json.loads(done.stdout.splitlines()[-1])
    assert one.startswith("127.")
    assert two.startswith("127.")
    assert len({one, two, "127.0.0.1"}) == 3
    assert (owner, job_by_proxy, owner_by_proxy) == ("127.0.0.1", "127.64.1.2", "127.0.0.1")
