"""Hyperband's trials as the loop runs them: stopped at a rung, bounded, and continued from checkpoints."""

import pytest
from tuning_runs import TuningRuns, definition_of

from clary.testing.control_plane import ControlPlane


@pytest.fixture
async def plane(tmp_path):
    async with ControlPlane.open(tmp_path) as plane:
        yield plane


@pytest.fixture
def runs(plane):
    return TuningRuns(plane)


async def test_hyperband_stops_trials_that_are_worse_than_others_of_their_rung(runs):
    hyperband = {"HyperbandStrategyConfig": {"MinResource": 1, "MaxResource": 9}}
    await runs.create(most=16, parallel=1, config={"Strategy": "Hyperband", "StrategyConfig": hyperband})
    stopped = []
    for number in range(1, 17):
        (name,) = await runs.open_names()
        agent = await runs.run(name)
        for _ in range(9):
            await runs.tell(name, float(number))
            await runs.look()
            if (await runs.trials())[-1].stop_reason:
                stopped.append(number)
                break
        await runs.end(agent)
        await runs.look()
    assert 1 not in stopped
    assert len(stopped) >= 8  # each trial is worse than all before it; only trials of the last bracket continue
    trials = await runs.trials()
    for number in stopped:
        trial = trials[number - 1]
        assert trial.stop_reason.startswith("Hyperband: after ")
        assert len(trial.outcome.curve) in (1, 3)
        assert trial.outcome.status.value == "Stopped"
    assert all(len(one.outcome.curve) == 9 for one in trials if one.number not in stopped)
    assert await runs.status() == "Completed"


async def test_a_trial_with_more_values_than_max_resource_is_stopped_and_not_continued(runs):
    hyperband = {"HyperbandStrategyConfig": {"MinResource": 1, "MaxResource": 3}}
    definition = definition_of(CheckpointConfig={"S3Uri": "s3://bucket/checkpoints"})
    config = {"Strategy": "Hyperband", "StrategyConfig": hyperband}
    await runs.create(most=30, parallel=1, config=config, TrainingJobDefinition=definition)
    reason = "Hyperband: it has reported 4 values of loss, and MaxResource is 3"
    while not [one for one in await runs.trials() if one.stop_reason == reason]:
        (name,) = await runs.open_names()
        agent = await runs.run(name)
        while not (await runs.trials())[-1].stop_reason:  # a program that does not end on its own
            await runs.tell(name, 1.0)
            await runs.look()
        await runs.end(agent)
        await runs.look()
    (whole,) = [one for one in await runs.trials() if one.stop_reason == reason]
    assert not [one for one in await runs.trials() if one.continues == whole.number]
    with_earlier = [
        one for one in await runs.trials() if (whole.continues or whole.number) in (one.number, one.continues)
    ]
    assert sum(len(one.outcome.curve) for one in with_earlier) == 4


async def run_hyperband(runs, *, most, definition):
    """Run Hyperband's trials one after the other; the first two have by far the best losses."""
    hyperband = {"HyperbandStrategyConfig": {"MinResource": 1, "MaxResource": 9}}
    config = {"Strategy": "Hyperband", "StrategyConfig": hyperband}
    await runs.create(most=most, parallel=1, config=config, TrainingJobDefinition=definition)
    losses = {}
    for number in range(1, most + 1):
        (name,) = await runs.open_names()
        trial = (await runs.trials())[-1]
        loss = losses.setdefault(trial.job_name, losses.get(trial.continues, float(number)))
        losses[number] = loss
        agent = await runs.run(name)
        for _ in range(9):
            await runs.tell(name, loss)
            await runs.look()
            if (await runs.trials())[-1].stop_reason:
                break
        await runs.end(agent)
        await runs.look()
    return await runs.trials()


async def test_hyperband_continues_a_trial_from_its_checkpoints_when_others_have_ended(plane, runs):
    definition = definition_of(CheckpointConfig={"S3Uri": "s3://bucket/checkpoints"})
    trials = await run_hyperband(runs, most=24, definition=definition)
    going_on = [one for one in trials if one.continues]
    assert going_on
    for one in going_on:
        first = trials[one.continues - 1]
        assert one.parameters == first.parameters
        assert first.stop_reason.startswith("Hyperband: ")
        training = await plane.job(one.job_name)
        assert training.request["CheckpointConfig"]["S3Uri"] == f"s3://bucket/checkpoints/{first.job_name}"
        said = f"It goes on from the checkpoints of trial {first.number}, {first.job_name}."
        assert any(said in note for note in training.warnings), training.warnings
    assert len(trials) == 24
    assert await runs.status() == "Completed"


async def test_hyperband_continues_no_trial_without_checkpoints(runs):
    trials = await run_hyperband(runs, most=24, definition=definition_of())
    assert not [one for one in trials if one.continues]
