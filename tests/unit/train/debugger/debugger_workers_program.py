"""Several workers: findings of rules in any worker, and a hook whose folder another program uses."""

import contextlib
import logging
import tempfile
from pathlib import Path

import numpy as np
import torch

from clary.train import debugger
from clary.train.debugger.capture.folder_claims import FolderClaim
from clary.train.debugger.errors import FolderTaken, InvalidWorker, RuleEvaluationConditionMet
from clary.train.debugger.files import COLLECTIONS, ENDED, step_file
from clary.train.debugger.hook import Hook
from clary.train.debugger.modes import ModeKeys
from clary.train.debugger.reading.ends import mark_ended
from clary.train.debugger.rule import invoke_rule
from clary.train.debugger.rules import make_rule
from clary.train.debugger.tensor_files import StepIndex, TensorEntry, write_step

torch.set_num_threads(1)
TENSOR = "gradient/Net_fc.weight"


def two_workers(folder, first, second, name=TENSOR):
    """Save one step of two workers, and return the trial."""
    for worker, values in (("worker_0", first), ("worker_1", second)):
        (folder / COLLECTIONS).mkdir(exist_ok=True)
        text = '{"num_workers": 2, "collections": {"gradients": {"include_regex": ["^gradient"], "tensor_names": []}}}'
        (folder / COLLECTIONS / f"{worker}.json").write_text(text)
        path = folder / "steps" / step_file(0, worker)
        path.parent.mkdir(parents=True, exist_ok=True)
        array = np.array(values, dtype="<f4")
        entry = TensorEntry(name=name, shape=array.shape)
        index = StepIndex(step=0, mode=ModeKeys.GLOBAL, mode_step=0, worker=worker, num_workers=2, written_at=1.0)
        write_step(path, index, [(entry, memoryview(array.tobytes()))])
    mark_ended(folder)
    return debugger.create_trial(folder)


def finding(rule, first, second, *, name=TENSOR, **parameters):
    with tempfile.TemporaryDirectory() as place:
        trial = two_workers(Path(place), first, second, name)
        try:
            invoke_rule(make_rule(rule, trial, parameters), end_step=1, raise_eval_cond=True)
        except RuleEvaluationConditionMet as met:
            return met.finding.text
    return ""


def test_a_problem_of_any_worker_is_found_and_names_the_worker():
    nan = float("nan")
    found = f"step 0: {TENSOR} of worker_1 has values that are NaN"
    assert finding("ExplodingTensor", [1, 2], [1, nan]) == found
    assert finding("ExplodingTensor", [1, 2], [1, 2]) == ""
    assert f"% of {TENSOR} of worker_1 are 0" in finding("AllZero", [1, 2], [0, 0])
    assert f"|{TENSOR} of worker_1| is 0" in finding("VanishingGradient", [1, 2], [0, 0])
    assert f"{TENSOR} of worker_1 has a variance" in finding("TensorVariance", [1, 2], [1, 900], max_threshold="5")
    assert "% of relu_output_0 of worker_1 are dead" in finding("DeadRelu", [[1.0]], [[0.0]], name="relu_output_0")
    found = finding("SaturatedActivation", [[1.0]], [[99.0]], name="tanh_input_0")
    assert "% of tanh_input_0 of worker_1 are saturated" in found


def test_values_are_those_of_the_requested_worker():
    with tempfile.TemporaryDirectory() as place:
        trial = two_workers(Path(place), [1, 2], [3, 4])
        tensor = trial.tensor(TENSOR)
        assert trial.workers() == tensor.workers(0) == ["worker_0", "worker_1"]
        assert tensor.value(0).tolist() == [1, 2]
        assert tensor.value(0, worker="worker_1").tolist() == [3, 4]
        assert tensor.reduction_value(0, "mean", worker="worker_1") == 3.5
        with contextlib.suppress(InvalidWorker):
            tensor.value(0, worker="worker_2")
            raise AssertionError("there is no worker_2")


def train(folder, *, is_automatic, num_checks=0, num_steps=2):
    """Evaluate some steps and train some steps with a hook; return the closed hook."""
    model = torch.nn.Linear(2, 1)
    hook = Hook(folder, save_all=True, save_config=debugger.SaveConfig(save_interval=1))
    hook.is_automatic = is_automatic
    hook.register_module(model)
    for number in range(num_checks + num_steps):
        with torch.set_grad_enabled(number >= num_checks):
            loss = torch.nn.functional.mse_loss(model(torch.ones(1, 2)), torch.ones(1, 1))
            hook.save_scalar("number", number)
        if number >= num_checks:
            loss.backward()
    hook.close()
    return hook


def test_a_later_program_that_trains_saves_and_one_that_only_evaluates_does_not():
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)

        def saved():
            return debugger.create_trial(folder).steps()

        train(folder, is_automatic=True, num_checks=3, num_steps=0)
        assert saved() == [0, 1, 2], "a preparation that runs a model is the first"
        train(folder, is_automatic=True)
        assert saved() == [0, 1], "and keeps no training from saving"
        ended = (folder / ENDED / "worker_0.json").read_bytes()
        assert train(folder, is_automatic=True, num_checks=4, num_steps=0).failure is None
        assert (folder / ENDED / "worker_0.json").read_bytes() == ended
        assert saved() == [0, 1], "an evaluation leaves the training's"
        assert train(folder, is_automatic=True, num_checks=2, num_steps=3).failure is None
        assert saved() == [2, 3, 4], "a script that is run again has checked its model first"
        train(folder, is_automatic=False, num_checks=1, num_steps=0)
        assert saved() == [0], "a hook of the program's own saves whatever it does"


def test_a_program_trains_without_saving_if_another_saves_in_its_folder():
    said = []
    handler = logging.Handler()
    handler.emit = said.append
    logging.getLogger("clary.debugger").addHandler(handler)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name in (COLLECTIONS, ENDED):
            (folder / name).mkdir()
        claim = FolderClaim(folder, "worker_0")
        hook = train(folder, is_automatic=False)
        assert isinstance(hook.failure, FolderTaken)
        assert list((folder / ENDED).iterdir()) == []
        claim.release()
        assert train(folder, is_automatic=False).failure is None
        steps = debugger.create_trial(folder).steps()
        assert steps == [0, 1]
    lines = [record.getMessage() for record in said]
    assert len(lines) == 1, lines
    assert all(line.startswith("debugger: this process saves nothing, training goes on: ") for line in lines)
