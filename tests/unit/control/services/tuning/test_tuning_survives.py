"""Tuning jobs under a service that is killed at any moment: no trial is missing, doubled or forgotten."""

import random
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tuning_runs import FEW, TuningRuns, request_of

from clary.testing.control_plane import ControlPlane
from clary.testing.fake_clock import FakeClock
from clary.testing.fake_engine import FakeEngine

PARALLEL = 2
NEVER = 10_000  # more than the number of writes


class Killed(BaseException):
    """A crash of the service at this point, which no handler catches."""


class Service:
    """A service that is killed and restarted on the same database and the same hosts.

    Args:
        home: its state folder.
    """

    def __init__(self, home):
        self.home = home
        self.clock = FakeClock()
        self.engine = FakeEngine()
        self.num_lives = 0
        self._context = None
        self.runs = None

    async def start(self):
        self._context = ControlPlane.open(self.home, clock=self.clock, engine=self.engine)
        self.runs = TuningRuns(await self._context.__aenter__())
        self.num_lives += 1

    async def end(self):
        await self._context.__aexit__(None, None, None)

    async def kill(self):
        """Restart the service, so that everything in its memory is lost."""
        await self.end()
        await self.start()

    async def look(self, *, killed_at=NEVER, is_written=False):
        """Run a pass of the keeper, and kill the service at write number `killed_at`; return whether it was killed."""
        writer = self.runs.plane.store._writer
        run, left = writer.run, killed_at

        async def dying(operation):
            nonlocal left
            left -= 1
            if left == 0:
                if is_written:
                    await run(operation)
                raise Killed
            return await run(operation)

        writer.run = dying
        try:
            await self.runs.plane.tuning_passes()
        except Killed:
            await self.kill()
            return True
        finally:
            writer.run = run
        await self.runs.plane.passes(2)
        return False

    async def finish(self, trial, how):
        """End a trial in the given manner; return the objective that it reported."""
        value = float(trial.number % 3) + len(trial.parameters["opt"]) if how == "good" else None
        agent = await self.runs.run(trial.job_name)
        await self.runs.tell(trial.job_name, *([] if value is None else [9.0, value]))
        await self.runs.end(agent, exit_code=1 if how == "bad" else 0)
        return value

    async def training_jobs(self):
        """Return name -> description of every existing training job."""
        answer = await self.runs.call("ListTrainingJobs", MaxResults=100)
        assert "NextToken" not in answer
        names = [row["TrainingJobName"] for row in answer["TrainingJobSummaries"]]
        return {name: await self.runs.plane.describe(name) for name in names}


@asynccontextmanager
async def service():
    with tempfile.TemporaryDirectory() as home:
        service = Service(Path(home))
        await service.start()
        try:
            yield service
        finally:
            await service.end()


async def check_sound(service, *, most, told=None):
    """Compare the tuning job, its trials and the training jobs with each other."""
    trials, jobs = await service.runs.trials(), await service.training_jobs()
    assert [one.number for one in trials] == list(range(1, len(trials) + 1))
    assert {one.job_name for one in trials} == set(jobs)
    assert len(trials) <= most
    assert sum(not one.is_over for one in trials) <= PARALLEL
    points = [tuple(sorted(one.parameters.items())) for one in trials]
    assert len(set(points)) == min(len(points), 4)  # there are four different points
    for one in trials:
        hyperparameters = jobs[one.job_name]["HyperParameters"]
        assert {name: hyperparameters[name] for name in one.parameters} == one.parameters
    answer = await service.runs.describe()
    assert sum(answer["TrainingJobStatusCounters"].values()) == len(trials)
    assert sum(answer["ObjectiveStatusCounters"].values()) == len(trials)
    if told is not None:
        assert {one.job_name: one.value for one in trials if one.is_over} == {
            one.job_name: told[one.job_name] for one in trials if one.is_over
        }
    return answer, trials


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("strategy", ["Random", "Bayesian", "Grid"])
async def test_kills_at_any_moment_neither_lose_nor_double_a_trial(strategy, seed):
    dice = random.Random(f"{strategy} {seed}")
    most = 4 if strategy == "Grid" else dice.randint(3, 6)
    told = {}
    async with service() as killed:
        config = {"Strategy": strategy, "ParameterRanges": FEW}
        if strategy == "Bayesian":
            config["TrainingJobEarlyStoppingType"] = "Auto"
        await killed.runs.call(
            "CreateHyperParameterTuningJob",
            **request_of(most=None if strategy == "Grid" else most, parallel=PARALLEL, config=config),
        )
        for _ in range(60):
            if (await killed.runs.plane.store.tuning.get("tuned")).is_terminal:
                break
            act = dice.choice(["look", "look", "killed look", "end", "end", "kill"])
            if act == "kill":
                await killed.kill()
            elif act == "end":
                running = [
                    one
                    for one in await killed.runs.trials()
                    if one.job_name not in told and (job := killed.runs.plane.hub.live_job(one.job_name)) and job.plan
                ]
                if running:
                    trial = dice.choice(running)
                    how = dice.choice(["good", "good", "good", "silent", "bad"])
                    told[trial.job_name] = await killed.finish(trial, how)
            else:
                at = dice.randint(1, 5) if act == "killed look" else NEVER
                await killed.look(killed_at=at, is_written=dice.random() < 0.5)
            await check_sound(killed, most=most)
        for _ in range(20):
            if (await killed.runs.plane.store.tuning.get("tuned")).is_terminal:
                break
            await killed.look()
            for trial in await killed.runs.trials():
                if not trial.is_over and trial.job_name not in told:
                    told[trial.job_name] = await killed.finish(trial, "good")
        else:
            job = await killed.runs.plane.store.tuning.get("tuned")
            raise AssertionError(f"there is no end: {job}, {await killed.runs.trials()}")
        answer, trials = await check_sound(killed, most=most, told=told)
        if answer["HyperParameterTuningJobStatus"] == "Completed":
            assert len(trials) == most
        else:
            assert answer["HyperParameterTuningJobStatus"] == "Failed"
            assert all(one.value is None for one in trials)
        assert answer["TrainingJobStatusCounters"]["InProgress"] == 0


async def run_through(*, kill_each_write):
    """Return the trials of a tuning job whose service is killed at each of its writes, or never."""
    async with service() as killed:
        config = {"Strategy": "Bayesian", "RandomSeed": 5, "ParameterRanges": FEW}
        await killed.runs.call("CreateHyperParameterTuningJob", **request_of(most=4, parallel=1, config=config))
        is_written = False
        for _ in range(100):
            if (await killed.runs.plane.store.tuning.get("tuned")).is_terminal:
                break
            if kill_each_write:
                is_written = not is_written
                await killed.look(killed_at=1, is_written=is_written)
            else:
                await killed.look()
            await killed.runs.plane.passes(2)
            for trial in await killed.runs.trials():
                job = killed.runs.plane.hub.live_job(trial.job_name)
                if not trial.is_over and job is not None and job.plan is not None and not job.is_terminal:
                    await killed.finish(trial, "good")
        answer, trials = await check_sound(killed, most=4)
        assert answer["HyperParameterTuningJobStatus"] == "Completed"
        return killed.num_lives, [(one.number, one.parameters, one.value) for one in trials]


async def test_a_service_that_is_killed_at_every_write_proposes_the_same_trials():
    lives, trials = await run_through(kill_each_write=True)
    assert lives > 8
    assert (1, trials) == await run_through(kill_each_write=False)


@pytest.mark.parametrize("is_written", [False, True])
@pytest.mark.parametrize("write", range(1, 8))
async def test_a_stop_is_completed_by_the_next_service(write, is_written):
    async with service() as killed:
        await killed.runs.call("CreateHyperParameterTuningJob", **request_of(most=6, parallel=PARALLEL))
        await killed.look()
        agents = [await killed.runs.run(one.job_name) for one in await killed.runs.trials()]
        await killed.runs.call("StopHyperParameterTuningJob", HyperParameterTuningJobName="tuned")
        await killed.look(killed_at=write, is_written=is_written)
        await killed.look()
        for agent in agents:
            job = await killed.runs.plane.job(agent.name)
            assert job.end_cause is not None
        assert await killed.runs.status() == "Stopping"
        await killed.kill()
        for trial in await killed.runs.trials():
            agent = killed.runs.plane.agent(trial.job_name)
            agent._number = 100  # its earlier reports had lower numbers
            await killed.runs.end(agent)
        await killed.look(killed_at=write, is_written=is_written)
        await killed.look()
        answer = await killed.runs.describe()
        assert answer["HyperParameterTuningJobStatus"] == "Stopped"
        assert answer["TrainingJobStatusCounters"]["Stopped"] == len(await killed.training_jobs()) == PARALLEL
