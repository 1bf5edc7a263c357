"""Hosts of a local network, with servers inside them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import clary
from clary.contract.launch_plan import Resources
from clary.control.engines.interface import Released
from clary.control.engines.local.engine import LocalEngine
from clary.testing.launch_plans import make_hosts, make_plan

SOURCE = str(Path(clary.__file__).parent.parent)
JOIN = f"""
import os, socket, sys, time
sys.path.insert(0, {SOURCE!r})
from clary.control.engines.local.network import namespaces
namespaces.setns(os.open(sys.argv[1], os.O_RDONLY), namespaces.CLONE_NEWNET)
"""


class FakeForkServer:
    """No fork server: these tests start agents, if any, as programs."""

    def prepare(self):
        """Start nothing."""

    def fork(self, *_, **__):
        """Return that no agent was forked."""
        return

    def close(self):
        """Do nothing."""


class LocalHosts(LocalEngine):
    """The local engine with one pool per job, which is named after the job and is removed with the job's attempt."""

    def __init__(self, *arguments, **settings):
        super().__init__(*arguments, **settings)
        self._fork_server = FakeForkServer()

    async def launch(self, plan):
        folder = self._folder(f"pool_{plan.job_name}", 1)
        return await super().launch(replace(plan, pool=folder.parent.name, pool_folder=str(folder)))

    async def end_attempt(self, job_name, attempt):
        names = [job_name] if job_name.startswith("pool_") else [f"pool_{job_name}", job_name]
        released = [await super(LocalHosts, self).end_attempt(name, attempt) for name in names]
        return Released(
            killed=tuple(words for each in released for words in each.killed),
            removed=tuple(words for each in released for words in each.removed),
        )


class Host:
    """Runs programs inside the network of one host."""

    def __init__(self, plan, name):
        self.address = plan.host(name).address
        self._namespace = plan.network.namespace_paths[name]

    def start(self, code):
        return subprocess.Popen(
            [sys.executable, "-S", "-c", JOIN + code, self._namespace],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    async def run(self, code):
        process = self.start(code)
        output, _ = await asyncio.to_thread(process.communicate, timeout=30)
        assert process.returncode == 0
        return output.strip()


class Server:
    """A server program inside a host, for as long as the block lasts; it prints a line once it listens."""

    def __init__(self, host, code):
        self._process = host.start(code)

    def __enter__(self):
        assert self._process.stdout.readline() == "listening\n"
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.communicate()


ECHO_SERVER = """
server = socket.create_server(("0.0.0.0", 7777))
print("listening", flush=True)
while True:
    connection, _ = server.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while data := connection.recv(65536):
        connection.sendall(data)
"""


def plan_of(num_hosts, *, link=None, **changes):
    hosts = make_hosts(num_hosts)
    if link is not None:
        hosts = tuple(replace(host, resources=Resources(num_cpus=1, memory_bytes=None, link=link)) for host in hosts)
    return make_plan(hosts=hosts, **changes)
