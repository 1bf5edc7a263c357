"""The local engine with plain processes and idle agents: processes that it starts, finds again and ends."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from clary.base.errors import EngineError
from clary.base.processes import ProcessId
from clary.contract.launch_plan import Isolation
from clary.contract.limits.cgroup_names import host_cgroup_name
from clary.control.engines.local import agent_processes, attempt_processes, attempt_record, cleaning, killing
from clary.control.engines.local.engine import LocalEngine
from clary.control.settings import Settings
from clary.testing.launch_plans import POOL, make_hosts, make_plan

_MADE: list[LocalEngine] = []  # by the test that runs
IDLE = "import time; time.sleep(300)"


@pytest.fixture
def use_agents(monkeypatch):
    """Replace the agent by a program; keep the arguments by which agents are recognised."""

    def use(code):
        def command(plan, host):
            return [sys.executable, "-S", "-c", code, "-m", "clary.agent", "--host", host]

        monkeypatch.setattr(agent_processes, "agent_command", command)

    use(IDLE)
    monkeypatch.setattr(attempt_processes, "LEAVE_TIMEOUT_S", 0.2)  # these agents do not exit by themselves
    return use


@pytest.fixture
async def engine(tmp_path, use_agents):
    engine = make_engine(tmp_path)
    yield engine
    for folder in (tmp_path / "jobs").glob("*/*"):
        await engine.end_attempt(folder.parent.name, int(folder.name))
    assert engine._children == {}


@pytest.fixture(autouse=True)
def ends_fork_servers():
    yield
    while _MADE:
        _MADE.pop().close()


def make_engine(home, environ=None):
    engine = LocalEngine(Settings(home=str(home), isolation="processes"), "http://127.0.0.1:4570", environ=environ)
    _MADE.append(engine)
    return engine


def plan_of(home, num_hosts=2, *, pool=POOL, **changes):
    hosts = make_hosts(num_hosts, isolation=Isolation.PROCESSES)
    folder = str(home / "jobs" / pool / "1")
    return make_plan(hosts=hosts, isolation=Isolation.PROCESSES, pool=pool, pool_folder=folder, **changes)


async def alive(engine, plan):
    """Return host name -> whether its agent is alive."""
    return {name: host.is_alive for name, host in (await engine.hosts(plan)).items()}


async def release(engine, plan):
    """Release the pool and the attempt, as at the end of a job; return descriptions of the killed processes."""
    released = [await engine.end(plan.pool), await engine.end_attempt(plan.job_name, plan.attempt)]
    return [words for each in released for words in each.killed]


async def test_hosts_share_the_machine_and_each_job_has_its_own_port(engine, tmp_path):
    one = await engine.launch(plan_of(tmp_path, job_name="one", pool="pool_one"))
    two = await engine.launch(plan_of(tmp_path, job_name="two", pool="pool_two"))
    assert [host.address for host in one.hosts] == ["127.0.0.1", "127.0.0.1"]
    assert one.network.anchor_pid is None
    assert one.network.interface == "lo"
    assert one.network.master_port != two.network.master_port
    assert Path(one.work_folder) == tmp_path / "jobs" / "one" / "1"


async def test_launch_twice_gives_the_same_plan(engine, tmp_path):
    first = await engine.launch(plan_of(tmp_path))
    assert await engine.launch(plan_of(tmp_path)) == first


async def test_a_fenced_host_has_no_agent_any_more_and_the_others_are_left_alone(engine, tmp_path):
    plan = await engine.launch(plan_of(tmp_path))
    await engine.start_agents(plan)
    record = attempt_record.read_record(Path(plan.pool_folder))
    os.kill(record.agents["algo-2"].pid, signal.SIGSTOP)  # frozen: only SIGKILL has an effect
    for _ in range(2):
        await engine.end_host(plan, "algo-2")
    assert await alive(engine, plan) == {"algo-1": True, "algo-2": False}


async def test_fencing_a_host_without_an_agent_does_nothing(engine, tmp_path):
    plan = await engine.launch(plan_of(tmp_path))
    await engine.end_host(plan, "algo-1")
    assert await alive(engine, plan) == {"algo-1": False, "algo-2": False}


async def test_repeated_starts_give_each_host_one_agent(engine, tmp_path):
    plan = await engine.launch(plan_of(tmp_path))
    assert await alive(engine, plan) == {"algo-1": False, "algo-2": False}
    await engine.start_agents(plan)
    before = attempt_record.read_record(Path(plan.pool_folder)).agents
    await engine.start_agents(plan)
    assert attempt_record.read_record(Path(plan.pool_folder)).agents == before
    assert await alive(engine, plan) == {"algo-1": True, "algo-2": True}


async def test_an_ended_agent_is_started_again_unless_its_host_was_heard(engine, tmp_path):
    plan = await engine.launch(plan_of(tmp_path))
    await engine.start_agents(plan)
    folder = Path(plan.pool_folder)
    spools = [folder / host / "left-by-the-agent" for host in ("algo-1", "algo-2")]
    for host, spool in zip(("algo-1", "algo-2"), spools, strict=True):
        await engine.end_host(plan, host)
        spool.touch()
    await engine.start_agents(plan, heard=frozenset({"algo-1"}))
    assert await alive(engine, plan) == {"algo-1": False, "algo-2": True}
    assert spools[0].exists()
    await engine.start_agents(plan)
    assert await alive(engine, plan) == {"algo-1": True, "algo-2": True}


async def test_release_ends_agents_and_their_children_and_can_be_repeated(engine, use_agents, tmp_path):
    ready = tmp_path / "child-pid"
    use_agents(
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-S', '-c', {IDLE!r}], start_new_session=True, env={{}})\n"
        f"open({str(ready)!r} + '.part', 'w').write(str(child.pid))\n"
        f"import os; os.rename({str(ready)!r} + '.part', {str(ready)!r})\n"
        "time.sleep(300)"
    )
    plan = await engine.launch(plan_of(tmp_path, 1))
    await engine.start_agents(plan)
    async with asyncio.timeout(10):
        while not ready.exists():
            await asyncio.sleep(0.01)
    child = ProcessId.of(int(ready.read_text()))
    (Path(plan.work_folder) / "algo-1" / "ml").mkdir(parents=True)
    (Path(plan.work_folder) / "algo-1" / "agent.log").touch()
    assert len(await release(engine, plan)) == 2
    assert not child.is_alive()
    assert not (Path(plan.work_folder) / "algo-1" / "ml").exists()
    assert (Path(plan.work_folder) / "algo-1" / "agent.log").exists()
    assert not Path(plan.pool_folder).parent.exists(), "nothing was said in it"
    assert await alive(engine, plan) == {"algo-1": False}
    assert await release(engine, plan) == []
    assert await engine.leftovers() == []


async def test_released_attempt_can_not_be_launched_again(engine, tmp_path):
    plan = await engine.launch(plan_of(tmp_path, 1))
    await engine.end_attempt(plan.job_name, plan.attempt)
    with pytest.raises(EngineError, match="hosts of attempt 1 were taken back"):
        await engine.launch(plan)
    (Path(plan.pool_folder) / "anchor.log").write_text("so that the folder stays")
    await engine.end(plan.pool)
    with pytest.raises(EngineError, match="hosts of attempt 1 were taken back"):
        await engine.start_agents(plan)


async def test_logs_of_a_pool_are_kept_until_its_job_is_deleted(engine, tmp_path):
    plan = await engine.launch(plan_of(tmp_path, 1))
    (Path(plan.pool_folder) / "anchor.log").write_text("a word")
    await engine.end_attempt(plan.job_name, plan.attempt)
    await engine.forget("another")
    await engine.end(plan.pool)
    assert Path(plan.pool_folder).exists()
    await engine.forget(plan.job_name)
    assert list((tmp_path / "jobs").iterdir()) == []


async def test_a_live_pool_is_kept_when_a_job_that_it_served_is_deleted(engine, tmp_path):
    plan = await engine.launch(plan_of(tmp_path, 1))
    await engine.end_attempt(plan.job_name, plan.attempt)
    await engine.forget(plan.job_name)
    assert Path(plan.pool_folder).exists()


async def test_an_attempt_of_an_older_release_whose_folder_is_its_pools_is_found_and_ended(engine, tmp_path):
    folder = str(tmp_path / "jobs/job-1/1")
    plan = await engine.launch(replace(plan_of(tmp_path), pool_folder=folder))
    await engine.start_agents(plan)
    assert plan.work_folder == folder
    assert await engine.launch(plan) == plan
    assert await alive(engine, plan) == {"algo-1": True, "algo-2": True}
    await engine.end_host(plan, "algo-2")
    assert await alive(engine, plan) == {"algo-1": True, "algo-2": False}
    assert [words.split(",")[0] for words in await release(engine, plan)] == ["agent of algo-1"]
    assert await engine.unreleased() == []


async def test_release_of_an_unknown_attempt_does_nothing(engine):
    released = await engine.end_attempt("never", 3)
    assert (released.killed, released.removed) == ((), ())


async def test_a_reused_pid_is_never_signalled(engine, tmp_path):
    plan = await engine.launch(plan_of(tmp_path, 1))
    with subprocess.Popen([sys.executable, "-S", "-c", IDLE]) as stranger:
        folder = Path(plan.pool_folder)
        record = attempt_record.read_record(folder)
        forged = ProcessId(stranger.pid, "1")
        attempt_record.write_record(folder, replace(record, agents={"algo-1": forged}))
        assert await alive(engine, plan) == {"algo-1": False}
        assert await release(engine, plan) == []
        assert stranger.poll() is None
        stranger.kill()


async def test_records_of_an_earlier_boot_name_no_process(engine, tmp_path):
    plan = await engine.launch(plan_of(tmp_path, 1))
    with subprocess.Popen([sys.executable, "-S", "-c", IDLE]) as stranger:
        record = attempt_record.AttemptRecord(
            boot_id="an earlier one", mark="0" * 32, agents={"algo-1": ProcessId.of(stranger.pid)}
        )
        attempt_record.write_record(Path(plan.pool_folder), record)
        assert await alive(engine, plan) == {"algo-1": False}
        assert await release(engine, plan) == []
        assert stranger.poll() is None
        stranger.kill()


async def test_an_agent_that_ended_is_started_anew(engine, use_agents, tmp_path):
    plan = await engine.launch(plan_of(tmp_path, 1))
    use_agents("raise SystemExit('no such module')")
    with contextlib.suppress(EngineError):  # it may have ended before the engine saw it
        await engine.start_agents(plan)
    async with asyncio.timeout(10):
        while (await alive(engine, plan))["algo-1"]:
            await asyncio.sleep(0.02)
    use_agents(IDLE)
    await engine.start_agents(plan)
    assert await alive(engine, plan) == {"algo-1": True}


async def test_an_agent_that_ends_before_it_is_seen_is_an_error_with_its_last_output(engine, monkeypatch, tmp_path):
    plan = await engine.launch(plan_of(tmp_path, 1))
    with monkeypatch.context() as patch:
        patch.setattr(agent_processes, "last_words", lambda log: "no such module")
        patch.setattr(ProcessId, "of", lambda pid: None)
        with pytest.raises(EngineError, match=r"agent of algo-1 ended before it reported: no such module"):
            await engine.start_agents(plan)


async def test_agents_get_their_token_and_no_keys_of_the_service(tmp_path, use_agents):
    use_agents("import os, sys; sys.stdout.write(repr(dict(os.environ))); sys.stdout.flush(); " + IDLE)
    environ = {"PATH": "/bin", "AWS_SECRET_ACCESS_KEY": "s", "CLARY_S3_SECRET_ACCESS_KEY": "s", "OMP_NUM_THREADS": "3"}
    engine = make_engine(tmp_path, environ)
    plan = await engine.launch(plan_of(tmp_path, 1))
    try:
        await engine.start_agents(plan)
        log = Path(plan.pool_folder) / "algo-1" / "agent.log"
        async with asyncio.timeout(10):
            while not log.read_text().endswith("}"):
                await asyncio.sleep(0.01)
        seen = eval(log.read_text())
    finally:
        await release(engine, plan)
    assert (seen["CLARY_AGENT_TOKEN"], seen["CLARY_POOL_TOKEN"]) == (plan.agent_token, plan.pool_token)
    assert seen["OMP_NUM_THREADS"] == "3"
    names = {"CLARY_AGENT_TOKEN", "CLARY_POOL_TOKEN", "CLARY_ATTEMPT_MARK"}
    assert {name for name in seen if name.startswith(("AWS_", "CLARY_"))} == names
    assert Path(seen["PYTHONPATH"].split(":")[0], "clary", "agent").is_dir()


SERVICE = """
import asyncio, sys, time
from clary.control.engines.local import agent_processes, attempt_record
from clary.control.engines.local.engine import LocalEngine
from clary.control.settings import Settings
from clary.contract.launch_plan import Isolation
from clary.testing.launch_plans import make_hosts, make_plan

agent_processes.agent_command = lambda plan, host: [
    sys.executable, "-S", "-c", "import time; time.sleep(300)", "-m", "clary.agent", "--host", host]
folder = f"{sys.argv[1]}/jobs/pool_0123456789ab/1"
plan = make_plan(hosts=make_hosts(2, isolation=Isolation.PROCESSES), isolation=Isolation.PROCESSES, pool_folder=folder)
engine = LocalEngine(Settings(home=sys.argv[1], isolation="processes"), "http://127.0.0.1:4570")

async def serve():
    launched = await engine.launch(plan)
    if sys.argv[2] == "before recording":
        write, count = attempt_record.write_record, [0]
        def die_before_second_write(folder, record):
            count[0] += 1
            if count[0] == 2:
                print("started", flush=True)
                time.sleep(300)
            write(folder, record)
        attempt_record.write_record = die_before_second_write
    await engine.start_agents(launched)
    print("started", flush=True)
    time.sleep(300)

asyncio.run(serve())
"""


@pytest.mark.parametrize("moment", ["after recording", "before recording"])
async def test_agents_outlive_a_killed_service_and_the_next_one_finds_them(tmp_path, use_agents, moment):
    environment = {**os.environ, "PYTHONPATH": agent_processes.clary_folder()}
    with subprocess.Popen(
        [sys.executable, "-c", SERVICE, str(tmp_path), moment], stdout=subprocess.PIPE, env=environment, text=True
    ) as service:
        assert service.stdout.readline() == "started\n"
        service.send_signal(signal.SIGKILL)
    engine = make_engine(tmp_path)
    plan = await engine.launch(plan_of(tmp_path))
    mark = attempt_record.read_record(Path(plan.pool_folder)).mark
    agents = killing.with_variable(agent_processes.MARK_VARIABLE, mark)
    assert len(agents) == 2
    await engine.start_agents(plan)  # as a new service does; it must not start a second pair
    assert await alive(engine, plan) == {"algo-1": True, "algo-2": True}
    assert len(killing.with_variable(agent_processes.MARK_VARIABLE, mark)) == 2
    assert len(await release(engine, plan)) == 2
    assert not any(agent.is_alive() for agent in agents)


async def test_release_ends_agents_that_were_never_recorded(tmp_path, use_agents):
    environment = {**os.environ, "PYTHONPATH": agent_processes.clary_folder()}
    with subprocess.Popen(
        [sys.executable, "-c", SERVICE, str(tmp_path), "before recording"],
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    ) as service:
        assert service.stdout.readline() == "started\n"
        service.send_signal(signal.SIGKILL)
    killed = await release(make_engine(tmp_path), plan_of(tmp_path))
    assert sorted(words.split(",")[0] for words in killed) == ["agent of algo-1", "agent of algo-2"]


async def test_a_leftover_process_of_a_released_pool_is_reported(engine, tmp_path):
    plan = await engine.launch(plan_of(tmp_path, 1))
    mark = attempt_record.read_record(Path(plan.pool_folder)).mark
    (Path(plan.pool_folder) / "anchor.log").write_text("so that the folder stays")
    await release(engine, plan)
    environment = {**os.environ, agent_processes.MARK_VARIABLE: mark}
    with subprocess.Popen([sys.executable, "-S", "-c", IDLE], env=environment) as stray:
        assert await engine.leftovers() == [
            f"Job {plan.pool}, attempt 1 is released and its process {stray.pid} still runs; "
            f"end it: kill -9 {stray.pid}"
        ]
        assert len(await release(engine, plan)) == 1


def enter_host_cgroup(plan, host, pid):
    """Put a process into the cgroup of a host, as its agent does; return the cgroup, or None if it cannot be made."""
    name = host_cgroup_name(plan.job_name, plan.attempt, host=host, work_folder=plan.work_folder)
    for place in cleaning.own_cgroup_places():
        cgroup = Path(place, cleaning.CGROUP_FAMILY, name)
        try:
            cgroup.mkdir(parents=True)
            (cgroup / "cgroup.procs").write_text(str(pid))
        except OSError:  # not writable by this user, or a cpuset without processors
            cleaning.remove_empty_cgroups([str(cgroup)])
            continue
        return cgroup
    return None


async def test_release_ends_orphans_that_only_their_cgroup_identifies(engine, tmp_path):
    """As after the death of an agent and of the keeper below it: an orphan with the program's own environment."""
    plan = await engine.launch(plan_of(tmp_path, 1))
    (Path(plan.work_folder) / "algo-1").mkdir()
    with subprocess.Popen([sys.executable, "-S", "-c", IDLE], env={}) as orphan:
        try:
            cgroup = enter_host_cgroup(plan, "algo-1", orphan.pid)
            if cgroup is None:
                pytest.skip("no cgroup can be made here")
            released = await engine.end_attempt(plan.job_name, plan.attempt)
            assert orphan.wait(timeout=10) == -signal.SIGKILL
            assert [words.split(" (")[0] for words in released.killed] == [f"process {orphan.pid}"]
            assert not cgroup.exists()
        finally:
            orphan.kill()


@pytest.mark.parametrize("damage", ["truncated", "empty", "no record", "folder deleted"])
async def test_a_damaged_record_is_rebuilt_from_running_processes(engine, tmp_path, damage):
    plan = await engine.launch(plan_of(tmp_path))
    await engine.start_agents(plan)
    path = Path(plan.pool_folder) / attempt_record.RECORD_FILE
    agents = attempt_record.read_record(path.parent).agents
    if damage == "folder deleted":
        shutil.rmtree(path.parent.parent)
    else:
        path.write_text({"truncated": path.read_text()[:40], "empty": "", "no record": "[1]"}[damage])

    later = make_engine(tmp_path)  # a new service knows only the folder
    if damage != "folder deleted":
        assert await alive(later, plan) == {"algo-1": True, "algo-2": True}
        assert [(held.name, held.attempt) for held in await later.unreleased()] == [
            (plan.job_name, 1),
            (plan.pool, 1),
        ]
    assert len(await release(later, plan)) == 2
    assert not any(agent.is_alive() for agent in agents.values())
    assert await later.unreleased() == []
    engine._reap()


async def test_a_folder_of_an_unknown_job_is_moved_aside_and_its_name_can_be_reused(engine, tmp_path):
    plan = await engine.launch(plan_of(tmp_path))
    assert plan.job_name not in await engine.released_jobs()
    await release(engine, plan)
    assert plan.job_name in await engine.released_jobs()
    aside = Path(await engine.set_aside(plan.job_name))
    assert plan.job_name not in await engine.released_jobs()
    assert (aside / "1" / attempt_record.RECORD_FILE).is_file()
    assert aside.is_relative_to(tmp_path / "set-aside")
    assert await engine.launch(plan_of(tmp_path)) is not None


@pytest.mark.parametrize(
    ("said", "num_free", "words"),
    [
        ("Traceback: boom\n", 0, "Traceback: boom"),
        ("", 1 << 30, "it said nothing"),
        ("", 0, "it said nothing: No space left on device, 0 bytes are free at"),
    ],
)
def test_the_message_for_a_silent_process_names_a_full_disk(tmp_path, monkeypatch, said, num_free, words):
    log = tmp_path / "agent.log"
    log.write_text(said)
    facts = os.statvfs(tmp_path)
    free_blocks = num_free // facts.f_frsize
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result((*facts[:4], free_blocks, *facts[5:])))
    assert agent_processes.last_words(log).startswith(words)
