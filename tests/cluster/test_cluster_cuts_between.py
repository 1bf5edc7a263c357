"""Network cuts between two hosts of a job: only these two cannot reach each other. Needs root."""

import asyncio
import os

import pytest
from network_hosts import ECHO_SERVER, Host, LocalHosts, Server, plan_of

from clary.base.errors import EngineError
from clary.contract.launch_plan import Link
from clary.control.engines.local.network_faults import part
from clary.control.settings import Settings

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces of several hosts: needs root"),
]

TRY = """
try:
    with socket.create_connection(("{address}", 7777), timeout={timeout_s}) as connection:
        connection.sendall(b"x")
        print(connection.recv(1).decode())
except OSError as error:
    print(type(error).__name__)
"""
# Sends each line of its input over one connection, and prints the echo.
TALK = """
connection = socket.create_connection(("{address}", 7777), timeout=60)
for line in sys.stdin:
    connection.sendall(line.encode())
    print(connection.recv(100).decode(), end="", flush=True)
"""


@pytest.fixture
async def engine(tmp_path):
    engine = LocalHosts(Settings(home=str(tmp_path)), "http://127.0.0.1:4570")
    yield engine
    for folder in (tmp_path / "jobs").glob("*/*"):
        await engine.end_attempt(folder.parent.name, int(folder.name))
    assert await engine.leftovers() == []


async def reaches(plan, host, other, *, timeout_s):
    """Try to connect from one host to another; return `x` if it succeeds."""
    address = plan.host(f"algo-{other}").address
    return await Host(plan, f"algo-{host}").run(TRY.format(address=address, timeout_s=timeout_s))


async def cut_off(engine, plan):
    """Return the names of the hosts that the engine reports as cut off."""
    return [name for name, host in (await engine.hosts(plan)).items() if host.cut_off is not None]


@pytest.mark.parametrize("link", [Link(), Link(delay_ms=0.5)], ids=["bridge", "tap-switch"])
@pytest.mark.long
async def test_several_pairs_of_hosts_are_cut_at_once_and_other_pairs_stay_connected(engine, link):
    plan = await engine.launch(plan_of(4, link=link))
    cut = {(1, 2), (2, 3), (1, 4)}
    with (
        Server(Host(plan, "algo-1"), ECHO_SERVER),
        Server(Host(plan, "algo-2"), ECHO_SERVER),
        Server(Host(plan, "algo-3"), ECHO_SERVER),
        Server(Host(plan, "algo-4"), ECHO_SERVER),
    ):
        for host, other in cut:
            await part(plan, (f"algo-{host}", f"algo-{other}"), up=False)
            await part(plan, (f"algo-{other}", f"algo-{host}"), up=False)  # the same cut again, with the hosts swapped
        for host, other in ((1, 2), (2, 1), (3, 2), (4, 1)):
            assert await reaches(plan, host, other, timeout_s=1) == "TimeoutError"
        for host, other in ((1, 3), (3, 1), (2, 4), (4, 2), (3, 4)):
            assert await reaches(plan, host, other, timeout_s=30) == "x"
        for host, other in cut:
            await part(plan, (f"algo-{host}", f"algo-{other}"), up=True)
            await part(plan, (f"algo-{host}", f"algo-{other}"), up=True)
        for host, other in ((1, 2), (2, 1), (3, 2), (4, 1)):
            assert await reaches(plan, host, other, timeout_s=30) == "x"
    assert await cut_off(engine, plan) == []


async def test_an_open_connection_stalls_during_a_cut_and_resumes_after_it(engine):
    plan = await engine.launch(plan_of(3))
    with Server(Host(plan, "algo-1"), ECHO_SERVER):
        talker = Host(plan, "algo-3").start(TALK.format(address=plan.host("algo-1").address))
        try:

            def tell(text):
                talker.stdin.write(text + "\n")
                talker.stdin.flush()

            tell("before")
            assert await asyncio.to_thread(talker.stdout.readline) == "before\n"
            await part(plan, ("algo-1", "algo-3"), up=False)
            tell("during")
            answer = asyncio.ensure_future(asyncio.to_thread(talker.stdout.readline))
            done, _ = await asyncio.wait([answer], timeout=2)
            assert not done
            await part(plan, ("algo-1", "algo-3"), up=True)
            assert await answer == "during\n"
        finally:
            talker.kill()
            talker.communicate()


async def test_in_a_job_of_two_hosts_the_second_counts_as_cut_off(engine):
    plan = await engine.launch(plan_of(2))
    await part(plan, ("algo-2", "algo-1"), up=False)
    async with asyncio.timeout(60):
        while not (told := await cut_off(engine, plan)):
            await asyncio.sleep(0.1)
    assert told == ["algo-2"]


async def test_a_cut_of_an_unknown_host_is_refused(engine):
    plan = await engine.launch(plan_of(3))
    with pytest.raises(EngineError, match="no host 'algo-9'"):
        await part(plan, ("algo-1", "algo-9"), up=False)
