"""One query of Slurm per second, shared by all callers; a failure of Slurm is raised for all of them."""

import asyncio

import pytest

from clary.base.errors import EngineError
from clary.control.engines.slurm.programs import Outcome
from clary.control.engines.slurm.queue_watch import KEEP_FAILURE_S, QueueWatch
from clary.testing.fake_clock import FakeClock

JOB = "6|6|0|{}|node-1|train|N/A|N/A|N/A|30:00|1|None|clary:0f3a99c2:pool_0123456789ab:0:30\n"


class FakePrograms:
    """Answers in place of Slurm's programs, and counts the queries."""

    def __init__(self):
        self.state = "RUNNING"
        self.is_away = False
        self.asked = []

    async def run(self, program, *arguments):
        await asyncio.sleep(0)
        self.asked.append("steps" if "--steps" in arguments else program)
        if self.is_away:
            return Outcome(code=1, output="", errors="slurm_load_jobs error: Unable to contact slurm controller")
        answers = {"steps": "6.0|0|node-1|algo-1\n", "squeue": JOB.format(self.state)}
        return Outcome(code=0, output=answers.get(self.asked[-1], ""), errors="")


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def programs():
    return FakePrograms()


@pytest.fixture
def watch(programs, clock):
    return QueueWatch(programs, clock, mark="0f3a99c2", uid=0)


async def test_concurrent_callers_share_one_query_and_steps_are_queried_first(watch, programs, clock):
    found = await asyncio.gather(*(watch.look() for _ in range(20)))
    assert programs.asked == ["steps", "squeue", "sinfo"]
    assert all(one is found[0] for one in found)
    clock.advance(0.9)
    assert await watch.look() is found[0]
    clock.advance(0.2)
    assert await watch.look() is not found[0]
    assert programs.asked.count("squeue") == 2
    assert programs.asked.count("sinfo") == 1  # nodes are cached longer than jobs
    clock.advance(3)
    await watch.look()
    assert programs.asked.count("sinfo") == 2


async def test_nodes_are_queried_again_after_a_change_of_a_job_or_an_action(watch, programs, clock):
    await watch.look()
    programs.state = "SUSPENDED"
    clock.advance(1.1)
    await watch.look()
    assert programs.asked.count("sinfo") == 2
    await watch.look(is_new=True)
    assert programs.asked.count("sinfo") == 3


async def test_a_caller_that_needs_new_data_gets_a_query_made_after_its_call(watch, programs):
    first = await watch.look()
    assert await watch.look(is_new=True) is not first
    watch.forget()
    await watch.look()
    assert programs.asked.count("squeue") == 3


async def test_after_a_change_queries_are_frequent_for_a_short_time(watch, programs, clock):
    await watch.look()
    watch.forget()
    for _ in range(12):
        clock.advance(0.35)
        await watch.look()
    # The first nine queries run within three seconds of the change, the tenth would be within a second of the ninth.
    assert programs.asked.count("squeue") == 1 + 9


async def test_steps_of_jobs_that_leave_the_queue_are_queried_again(watch, programs):
    programs.state = "COMPLETING"
    await watch.look()
    assert programs.asked == ["steps", "squeue", "steps", "sinfo"]


async def test_a_failure_of_slurm_is_raised_for_all_callers_until_it_answers(watch, programs, clock):
    programs.is_away = True
    found = await asyncio.gather(*(watch.look() for _ in range(5)), return_exceptions=True)
    assert {type(one) for one in found} == {EngineError}
    assert all(one.retryable and "Unable to contact slurm controller" in one.message for one in found)
    assert programs.asked == ["steps"]
    clock.advance(KEEP_FAILURE_S)
    programs.is_away = False
    assert (await watch.look()).jobs[0].job_id == 6


async def test_a_slurm_that_hangs_is_queried_once_for_a_pass_over_many_jobs(watch, programs, clock, monkeypatch):
    async def hang(program, *arguments):
        programs.asked.append(program)
        clock.advance(20)
        raise EngineError(f"{program} gave no answer in 20 s", retryable=True)

    monkeypatch.setattr(programs, "run", hang)
    for is_new in (False, True) * 25:
        with pytest.raises(EngineError, match="gave no answer in 20 s"):
            await watch.look(is_new=is_new)
    watch.forget()
    with pytest.raises(EngineError, match="gave no answer in 20 s"):
        await watch.look()
    assert programs.asked == ["squeue"]
    clock.advance(KEEP_FAILURE_S)
    with pytest.raises(EngineError, match="gave no answer in 20 s"):
        await watch.look()
    assert programs.asked == ["squeue"] * 2


async def test_callers_that_wait_for_a_slurm_that_hangs_share_its_failure(watch, programs, clock, monkeypatch):
    async def hang(program, *arguments):
        programs.asked.append(program)
        await asyncio.sleep(0)
        clock.advance(20)
        raise EngineError(f"{program} gave no answer in 20 s", retryable=True)

    monkeypatch.setattr(programs, "run", hang)
    found = await asyncio.gather(*(watch.look(is_new=True) for _ in range(5)), return_exceptions=True)
    assert {type(one) for one in found} == {EngineError}
    assert programs.asked == ["squeue"]
