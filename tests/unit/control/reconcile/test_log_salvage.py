"""Lines that a killed agent left in its spool; the agent's own code writes the spool."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from clary.agent.log.log_spool import LogSpool
from clary.base.errors import EngineError, Fault
from clary.contract.agent_protocol import HostPhase, LogBatch, LogBlock
from clary.contract.log_blocks import SPOOL_FOLDER
from clary.contract.stop_limits import RELEASE_LINES_S
from clary.control.reconcile.releasing import RELEASE_WAIT_S
from clary.testing.control_plane import ControlPlane
from clary.testing.fake_engine import FakeEngine

MISSING = "clary: the agent of algo-1 ended without leave: {} lines came from its spool after its end; what it had not "


class EngineWithFolder(FakeEngine):
    """An engine whose attempts have an existing work folder."""

    def __init__(self, folder):
        super().__init__()
        self._folder = folder

    async def launch(self, plan):
        return replace(await super().launch(plan), work_folder=str(self._folder))


@pytest.fixture
async def plane(tmp_path):
    async with ControlPlane.open(tmp_path, engine=EngineWithFolder(tmp_path / "work")) as plane:
        await plane.create(num_hosts=2)
        await plane.passes()
        for host in ("algo-1", "algo-2"):
            (tmp_path / "work" / host).mkdir(parents=True)
        for phase in (HostPhase.PREPARING, HostPhase.PREPARED, HostPhase.RUNNING):
            for host in ("algo-1", "algo-2"):
                await plane.agent(host=host).report(phase)
        yield plane


async def spool_of(plane, host="algo-1", **options):
    work_folder = Path((await plane.job()).plan["work_folder"])
    return LogSpool(work_folder / host / SPOOL_FOLDER, **options)


async def texts(plane, host="algo-1"):
    stream = next(name for name in (await plane.job()).log_streams if f"/{host}-" in name)
    return [event.message for event in (await plane.logs.get_events(stream, from_head=True)).events]


async def end_without_leave(plane, host="algo-1"):
    """Kill the agent of this host, end the other agents, and let the job be released."""
    plane.engine.end_agent("job", host)
    await plane.passes(3)
    plane.engine.end_all_agents("job")
    await plane.passes(5)
    assert (await plane.job()).is_released


@pytest.mark.parametrize("num_sent", [0, 1, 7, 20])
async def test_unsent_lines_are_stored_once_and_the_log_notes_the_loss(plane, num_sent):
    spool = await spool_of(plane, segment_bytes=100)
    for first in range(0, 20, 2):
        spool.append([f"line {first}", f"line {first + 1}"], rank=0)
    if num_sent:
        blocks = tuple(spool.read(0, max_lines=num_sent, max_bytes=1 << 20))
        await plane.agent().send_logs(LogBatch(first_sequence=0, blocks=blocks))
    await end_without_leave(plane)
    *lines, last = await texts(plane)
    assert lines == [f"line {number}" for number in range(20)]
    assert last.startswith(MISSING.format(20 - num_sent))
    assert await texts(plane, "algo-2") == []


async def test_a_partly_written_block_is_left_out(plane):
    spool = await spool_of(plane)
    spool.append(["whole"])
    spool.append(["cut off by the end of the agent"])
    [path] = (Path((await plane.job()).plan["work_folder"]) / "algo-1" / SPOOL_FOLDER).iterdir()
    path.write_bytes(path.read_bytes()[:-5])
    await end_without_leave(plane)
    lines = await texts(plane)
    assert lines[0] == "whole"
    assert lines[1].startswith(MISSING.format(1))


async def test_an_agent_that_ended_in_order_leaves_no_lines_to_salvage(plane):
    spool = await spool_of(plane)
    spool.append(["line"])
    spool.close()
    (Path((await plane.job()).plan["work_folder"]) / "algo-1" / SPOOL_FOLDER).rmdir()
    await end_without_leave(plane)
    assert await texts(plane) == []


@pytest.mark.parametrize("name", ["000000000000.lines", "words.lines"])
async def test_a_path_that_is_no_file_of_an_agent_is_not_followed_and_does_not_block(plane, tmp_path, name):
    secret = tmp_path / "secret"
    secret.write_bytes(b"\0" * 16 + b"secret")
    (await spool_of(plane)).append(["line"])
    folder = Path((await plane.job()).plan["work_folder"]) / "algo-1" / SPOOL_FOLDER
    for path in folder.iterdir():
        path.unlink()
    (folder / name).symlink_to(secret)
    await end_without_leave(plane)
    assert await texts(plane) == []


async def test_the_log_of_a_host_on_another_machine_says_once_that_unsent_lines_are_lost(plane, monkeypatch, tmp_path):
    shutil.rmtree(tmp_path / "work")
    await plane.agent().send_logs(LogBatch(first_sequence=0, blocks=(LogBlock(at_ms=0, text="line"),)))
    refused = [2]

    async def refuse_twice(*arguments):
        if refused[0]:
            refused[0] -= 1
            raise EngineError("the box does not answer", fault=Fault.INFRASTRUCTURE)
        await ended(*arguments)

    ended = plane.engine.end_attempt
    monkeypatch.setattr(plane.engine, "end_attempt", refuse_twice)
    plane.engine.end_agent("job", "algo-1")
    await plane.passes(3)
    plane.engine.end_all_agents("job")
    for _ in range(5):
        await plane.passes(3)
        plane.clock.advance(5)
    assert (await plane.job()).is_released
    assert refused == [0]
    assert await texts(plane) == [
        "line",
        "clary: algo-1 was lost, and with it the lines that its agent had not sent, if there were any",
    ]


async def release(plane, num_unsent):
    """Let the program of algo-1 fail, and release the hosts while algo-1 has unsent lines."""
    agents = {host: plane.agent(host=host) for host in ("algo-1", "algo-2")}
    for agent in agents.values():
        agent._number = 10  # later than the reports of the fixture
    exits = {"algo-1": (plane.exit_of(1),), "algo-2": ()}
    for phase in (HostPhase.EXITED, HostPhase.DONE):
        for host in ("algo-2", "algo-1"):
            await agents[host].report(phase, exits=exits[host])
            await plane.passes()
    assert (await plane.job()).is_terminal
    await agents["algo-1"].report(HostPhase.RELEASED, exits=exits["algo-1"], num_unsent_lines=num_unsent)
    plane.engine.end_all_agents("job")
    await plane.passes(5)
    assert (await plane.job()).is_released


async def test_lines_that_a_released_host_has_not_sent_are_stored(plane):
    spool = await spool_of(plane)
    spool.append([f"line {number}" for number in range(5)], rank=0)
    spool.close(keeps_files=True)
    await release(plane, 5)
    *lines, last = await texts(plane)
    assert lines == [f"line {number}" for number in range(5)]
    assert last.startswith("clary: algo-1 was released before its log was sent: 5 lines came from its spool")


async def test_lines_of_a_released_host_that_are_out_of_reach_are_reported_as_lost(plane):
    await release(plane, 5)
    words = "clary: the service did not take the last 5 log lines of algo-1 before its release: they are lost"
    assert await texts(plane) == [words]


async def test_a_released_host_that_has_sent_every_line_has_no_further_line(plane):
    await release(plane, 0)
    assert await texts(plane) == []


def test_a_host_that_is_released_has_less_time_for_its_lines_than_the_service_waits():
    assert RELEASE_LINES_S + 2.0 < RELEASE_WAIT_S
