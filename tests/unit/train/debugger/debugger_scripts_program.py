"""Calls of public scripts for smdebug: values before the model's call, hooks of their own, jobs without a hook."""

import contextlib
import functools
import json
import logging
import os
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.optim.optimizer import register_optimizer_step_pre_hook

from clary.agent.training.value_lines import of_json_line
from clary.compat.smdebug import pytorch as smd
from clary.train import debugger
from clary.train.debugger.capture.metric_file import FOLDER_VARIABLE
from clary.train.debugger.configuration import PATH_VARIABLE, SWITCH_VARIABLE
from clary.train.debugger.hook import Hook, del_hook, get_hook
from clary.train.debugger.modes import ModeKeys

torch.set_num_threads(1)
EVERY = debugger.SaveConfig(save_interval=1)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 3)
        self.relu = torch.nn.ReLU()
        self.out = torch.nn.Linear(3, 2)

    def forward(self, x):
        return self.out(self.relu(self.fc(x)))


class Lines(logging.Handler):
    """Keeps the lines of the debugger's log."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def in_folder(test):
    """Run a test with a new folder and the lines of the log; remove the hook and the variables afterwards."""

    @functools.wraps(test)
    def run():
        log, logger = Lines(), logging.getLogger("clary.debugger")
        logger.addHandler(log)
        logger.propagate = False
        with tempfile.TemporaryDirectory(prefix="clary-debugger-") as at:
            try:
                test(Path(at), log.lines)
            finally:
                del_hook()
                logger.removeHandler(log)
                for name in (PATH_VARIABLE, SWITCH_VARIABLE, FOLDER_VARIABLE):
                    os.environ.pop(name, None)

    return run


def make(at, **options):
    hook = Hook(at, strict=True, **{"save_config": EVERY, **options})
    model = Net()
    hook.register_module(model)
    return hook, model


def train(model, steps, before=None, between=None, after=None, loss=None):
    for step in range(steps):
        if before:
            before(step)
        given, labels = torch.randn(8, 4), torch.randint(0, 2, (8,))
        output = model(given)
        if between:
            between(step)
        value = (loss or (lambda *args: F.cross_entropy(*args)))(output, labels)
        value.backward()
        if after:
            after(step)


def saved(hook, at, name):
    """Return step -> value of a tensor of one number."""
    hook.close()
    trial = debugger.create_trial(at)
    if not trial.has_tensor(name):
        return {}
    return {step: float(value.reshape(-1)[0]) for step, value in trial.tensor(name).values().items()}


# Jobs without a configuration.


@in_folder
def test_without_a_configuration_there_is_no_hook(at, lines):
    os.environ[PATH_VARIABLE] = str(at / "missing.json")
    assert smd.get_hook(create_if_not_exists=True) is None
    assert smd.get_hook(str(at / "other.json"), create_if_not_exists=True) is None
    assert get_hook() is None


@in_folder
def test_a_configuration_makes_a_hook_unless_the_switch_is_off(at, lines):
    (at / "hook.json").write_text(json.dumps({"LocalPath": str(at / "tensors")}))
    os.environ[PATH_VARIABLE] = str(at / "hook.json")
    for off in ("0", "False"):
        os.environ[SWITCH_VARIABLE] = off
        assert smd.get_hook(create_if_not_exists=True) is None
    os.environ[SWITCH_VARIABLE] = "1"
    assert isinstance(smd.get_hook(create_if_not_exists=True), Hook)


# Values that programs pass.


@in_folder
def test_numbers_and_values_passed_before_the_first_call_belong_to_the_first_step(at, lines):
    hook, model = make(at)
    hook.save_scalar("parameters", 23.0)
    hook.save_scalar("parameters", 24.0)
    hook.save_tensor("labels", [7.0])
    train(model, 2)
    assert saved(hook, at, "scalar/parameters") == {0: 24.0}
    assert saved(hook, at, "labels") == {0: 7.0}


@in_folder
def test_values_passed_before_the_models_call_belong_to_the_step_of_that_call(at, lines):
    hook, model = make(at)
    value = torch.zeros(1)

    def before(step):
        hook.save_tensor("before", value.fill_(step))

    def after(step):
        hook.save_tensor("after", torch.tensor([step]))
        value.fill_(-1)  # the program uses its memory again

    train(model, 3, before, lambda step: hook.save_tensor("between", [step]), after)
    assert saved(hook, at, "before") == {0: 0, 1: 1, 2: 2}
    assert saved(hook, at, "between") == {0: 0, 1: 1, 2: 2}
    assert saved(hook, at, "after") == {1: 0, 2: 1}
    assert any("last values of after are not saved" in line for line in lines)


@in_folder
def test_a_value_that_follows_the_last_call_is_saved_if_the_last_step_has_none(at, lines):
    hook, model = make(at)
    train(model, 2)
    hook.save_tensor("score", [0.5])
    assert saved(hook, at, "score") == {1: 0.5}
    assert not lines


@in_folder
def test_values_of_an_evaluation_without_gradients_belong_to_the_call_that_follows(at, lines):
    hook, model = make(at)
    hook.set_mode(ModeKeys.EVAL)
    with torch.no_grad():
        for step in range(3):
            hook.save_tensor("labels", [step])
            model(torch.randn(8, 4))
    assert saved(hook, at, "labels") == {0: 0, 1: 1, 2: 2}


@in_folder
def test_values_of_steps_that_are_not_saved_do_not_go_to_a_step_that_is(at, lines):
    hook, model = make(at, save_config=debugger.SaveConfig(save_interval=3))
    train(model, 7, between=lambda step: step in (2, 3, 5) and hook.save_tensor("between", [step]))
    assert saved(hook, at, "between") == {3: 3}


@in_folder
def test_a_number_saved_after_the_phase_was_changed_keeps_the_phase_of_its_step(at, lines):
    hook, model = make(at, save_config=debugger.SaveConfig(save_interval=2))
    hook.set_mode(ModeKeys.TRAIN)
    train(model, 2)
    hook.set_mode(ModeKeys.EVAL)
    hook.save_scalar("loss", 1.5)
    hook.close()
    trial = debugger.create_trial(at)
    assert trial.mode(1) is ModeKeys.TRAIN
    assert trial.tensor("scalar/loss").steps(mode=ModeKeys.TRAIN) == [1]


@in_folder
def test_text_is_not_saved_and_does_not_end_the_saving(at, lines):
    hook, model = make(at)
    train(model, 1)
    hook.save_tensor("tokens", np.array(["a", "b"]))
    hook._write_raw_tensor_simple("input_tokens", np.array(["a", "b"]))
    train(model, 1)
    assert [line.split(" is not saved")[0] for line in lines] == ["debugger: tokens", "debugger: input_tokens"]
    assert hook.failure is None
    assert saved(hook, at, "tokens") == {}
    assert debugger.create_trial(at).steps() == [0, 1]


@in_folder
def test_modules_added_to_a_collection_before_an_early_number_are_saved(at, lines):
    hook = Hook(at, save_config=EVERY, strict=True)
    model = Net()
    hook.get_collection("mine").add_module_tensors(model.fc)
    hook.save_scalar("early", 1)
    hook.register_module(model)
    train(model, 1)
    hook.close()
    assert debugger.create_trial(at).tensor_names(collection="mine") == ["fc_output_0"]


@in_folder
def test_losing_early_numbers_is_said_in_the_log(at, lines):
    hook, _ = make(at)
    hook.save_scalar("parameters", 23.0)
    hook.save_tensor("labels", [1])
    hook.close()
    assert any("scalar/parameters not saved" in line for line in lines)
    assert any("labels are not saved" in line for line in lines)


@in_folder
def test_numbers_for_sagemaker_become_metrics_of_the_job(at, lines):
    os.environ[FOLDER_VARIABLE] = str(at / "metrics")
    hook, model = make(at / "tensors")
    hook.save_scalar("parameters", 23.0, sm_metric=True)
    hook.set_mode(ModeKeys.TRAIN)
    train(model, 2)
    hook.save_scalar("loss", 0.25, sm_metric=True, timestamp=1_700_000_000.0)
    hook.save_scalar("quiet", 0.5)
    hook.save_scalar("rate", float("nan"), sm_metric=True)
    (file,) = (at / "metrics").glob("*.json")
    found = [of_json_line(line) for line in file.read_bytes().splitlines()]
    assert [(one.name, one.value, one.step) for one in found] == [
        ("scalar/parameters_GLOBAL", 23.0, 0),
        ("scalar/loss_TRAIN", 0.25, 1),
        ("scalar/rate_TRAIN", None, 1),
    ]
    assert found[1].at_ms == 1_700_000_000_000


@in_folder
def test_a_folder_of_metrics_that_cannot_be_written_is_said_once(at, lines):
    (at / "file").touch()
    os.environ[FOLDER_VARIABLE] = str(at / "file" / "metrics")
    hook, model = make(at / "tensors")
    train(model, 1)
    hook.save_scalar("loss", 1.0, sm_metric=True)
    hook.save_scalar("loss", 2.0, sm_metric=True)
    assert len([line for line in lines if "become no metrics" in line]) == 1
    assert saved(hook, at / "tensors", "scalar/loss") == {0: 2.0}


@in_folder
def test_collections_have_their_steps_before_the_first_step(at, lines):
    hook, model = make(at, save_config=debugger.SaveConfig(save_interval=2))
    steps = hook.get_collections()["all"].save_config
    assert [steps.should_save_step(ModeKeys.EVAL, step) for step in range(3)] == [True, False, True]
    hook._write_raw_tensor_simple("early", np.array([5.0]))
    train(model, 2)
    hook._write_raw_tensor_simple("tokens", np.array([3.0]))
    hook._write_raw_tensor_simple("nothing", np.array([]))
    assert saved(hook, at, "tokens") == {1: 3.0}
    assert saved(hook, at, "early") == {0: 5.0}
    assert saved(hook, at, "nothing") == {}


# Hooks and losses of the program's own.


class OwnHook(smd.Hook):
    """As in the example of iterative pruning."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.calls = []

    def forward_hook(self, module, inputs, outputs):
        name = self.module_maps[module]
        self.calls.append((self.step, name))
        outputs.register_hook(self.backward_hook(name + "_output"))
        self._write_inputs(name + "_own", inputs)
        self._write_outputs(name + "_own", outputs)
        self.last_saved_step = self.step


@in_folder
def test_a_subclass_is_made_from_the_configuration_and_its_forward_hook_is_called(at, lines):
    (at / "hook.json").write_text(
        json.dumps(
            {
                "LocalPath": str(at / "tensors"),
                "HookParameters": {"save_interval": "2"},
                "CollectionConfigurations": [
                    {"CollectionName": "own", "CollectionParameters": {"include_regex": "_own_|^gradient/"}}
                ],
            }
        )
    )
    os.environ[PATH_VARIABLE] = str(at / "hook.json")
    automatic = Hook.create_from_json_file()
    automatic.is_automatic = True
    assert smd.Hook.create_from_json_file() is automatic
    hook = OwnHook.create_from_json_file()
    assert type(hook) is OwnHook
    assert get_hook() is hook
    criterion, model = torch.nn.CrossEntropyLoss(), Net()
    hook.register_module(model)
    hook.register_loss(criterion)
    train(model, 3, loss=criterion)
    hook.close()
    called = ["fc", "relu", "out", "Net", "CrossEntropyLoss"]
    assert hook.calls == [(step, name) for step in (0, 2) for name in called]
    assert (hook.failure, hook.last_saved_step) == (None, 2)
    names = debugger.create_trial(at / "tensors").tensor_names(collection="own")
    assert {"fc_own_input_0", "relu_own_output_0", "CrossEntropyLoss_own_output_0", "gradient/fc_output"} <= set(names)


@in_folder
def test_an_own_backward_hook_is_asked_for_each_parameter(at, lines):
    class Halves(smd.Hook):
        def backward_hook(self, tname):
            save = super().backward_hook(tname + "_half")
            return lambda grad: save(grad / 2)

    hook = Halves(at, strict=True, save_config=EVERY, include_collections=["gradients"])
    model = Net()
    hook.register_module(model)
    train(model, 1)
    expected = {f"gradient/Net_{name}_half": one.grad / 2 for name, one in model.named_parameters()}
    hook.close()
    trial = debugger.create_trial(at)
    assert set(trial.tensor_names(collection="gradients")) == set(expected)
    for name, value in expected.items():
        assert np.array_equal(trial.tensor(name).value(0), value.numpy())


@in_folder
def test_an_error_in_an_own_hook_ends_the_saving_but_not_the_training(at, lines):
    class Fails(smd.Hook):
        def forward_hook(self, module, inputs, outputs):
            raise ValueError("mine")

        def forward_pre_hook(self, module, inputs):
            raise AssertionError("not called")

    hook = Fails(at, save_config=EVERY)
    hook.register_module(model := Net())
    train(model, 2)
    assert "mine" in str(hook.failure)
    assert any("Fails.forward_pre_hook is never called" in line for line in lines)


@in_folder
def test_a_registered_loss_of_torch_has_one_name(at, lines):
    hook, model = make(at)
    criterion = torch.nn.CrossEntropyLoss()
    hook.register_loss(criterion)
    train(model, 2, loss=criterion)
    hook.close()
    trial = debugger.create_trial(at)
    assert trial.tensor_names(collection="losses") == ["CrossEntropyLoss_output_0"]
    assert trial.tensor("CrossEntropyLoss_output_0").steps() == [0, 1]


@in_folder
def test_tensorboard_output_is_left_out_with_a_warning(at, lines):
    hook = smd.Hook(str(at), export_tensorboard=True, tensorboard_dir=str(at / "board"))
    assert get_hook() is hook
    assert [line for line in lines if "export_tensorboard is not supported" in line] == lines
    assert len(lines) == 1


@in_folder
def test_a_trial_tells_when_it_has_read_all_steps(at, lines):
    hook, model = make(at)
    train(model, 1)
    hook._output._saver.finish_step()
    trial = debugger.create_trial(at)
    assert trial.loaded_all_steps is False
    hook.close()
    trial._next_look_s = 0.0
    assert trial.loaded_all_steps is True
    assert trial.steps() == [0]


# Values before the backward pass, and what they cost.


def of_steps(hook, at, model, *, steps=3, under=contextlib.nullcontext, after=False):
    """Save a value before each backward pass, or after it; return step -> value."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        loss = model(torch.randn(8, 4)).square().mean()
        if after:
            loss.backward()
        with under():
            hook.save_tensor("mine", [step], "mine")
        own = [one.register_post_accumulate_grad_hook(lambda _: None) for one in model.parameters()]
        own.append(register_optimizer_step_pre_hook(lambda *_: None))
        if not after:
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        for one in own:
            one.remove()
    return saved(hook, at, "mine")


@in_folder
def test_a_value_passed_without_gradients_between_loss_and_backward_belongs_to_its_step(at, lines):
    hook, model = make(at)
    assert of_steps(hook, at, model, under=torch.no_grad) == {0: 0, 1: 1, 2: 2}
    assert not lines


def fully_sharded(model):
    mesh = init_device_mesh("cpu", (1,))
    fully_shard(model[0], mesh=mesh)
    return fully_shard(model, mesh=mesh)


def units(at, make_units, **options):
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        try:
            hook = Hook(at, strict=True, save_config=EVERY)
            model = make_units(torch.nn.Sequential(Net(), torch.nn.Linear(2, 2)))
            hook.register_module(model)
            return of_steps(hook, at, model, **options)
        finally:
            dist.destroy_process_group()


def sharded(uses_originals, model):
    model[0] = FullyShardedDataParallel(model[0], use_orig_params=uses_originals, device_id=torch.device("cpu"))
    return FullyShardedDataParallel(model, use_orig_params=uses_originals, device_id=torch.device("cpu"))


@in_folder
def test_a_value_belongs_to_its_step_if_units_of_fsdp_keep_the_parameters(at, lines):
    assert units(at, functools.partial(sharded, True)) == {0: 0, 1: 1, 2: 2}


@in_folder
def test_a_value_belongs_to_its_step_if_units_of_fsdp_replace_the_parameters(at, lines):
    assert units(at, functools.partial(sharded, False)) == {0: 0, 1: 1, 2: 2}


@in_folder
def test_a_value_after_the_backward_pass_of_fsdp_belongs_to_the_next_step(at, lines):
    assert units(at, functools.partial(sharded, True), after=True) == {1: 0, 2: 1}


@in_folder
def test_a_value_belongs_to_its_step_if_a_model_is_registered_before_fsdp_wraps_it(at, lines):
    def wrapped(model):
        get_hook().register_module(model)
        return FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu"))

    assert units(at, wrapped) == {0: 0, 1: 1, 2: 2}


@in_folder
def test_a_value_belongs_to_its_step_with_fully_shard(at, lines):
    assert units(at, fully_sharded) == {0: 0, 1: 1, 2: 2}


@in_folder
def test_a_value_after_the_backward_pass_of_fully_shard_belongs_to_the_next_step(at, lines):
    assert units(at, fully_sharded, after=True) == {1: 0, 2: 1}


def num_hooks(model):
    return sum(len(one._post_accumulate_grad_hooks or ()) for one in model.parameters())


@in_folder
def test_steps_that_are_not_saved_keep_no_values_and_hook_no_parameters(at, lines):
    hook = Hook(at, strict=True, save_config=debugger.SaveConfig(save_interval=5))
    hook.register_module(model := torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(10)]))
    hook.set_mode(ModeKeys.TRAIN)
    seen = []

    def look(step):
        hook.save_tensor("mine", [step], "mine")
        seen.append((len(hook._capture._passed._values), num_hooks(model)))

    train(model, 6, between=look)
    assert seen == [(1, 20), (0, 0), (0, 0), (0, 0), (1, 7), (1, 20)]
    assert saved(hook, at, "mine") == {0: 0, 5: 5}


@in_folder
def test_the_first_gradient_removes_all_hooks_and_a_second_backward_pass_is_seen(at, lines):
    hook, model = make(at)
    left = []
    output = model(torch.randn(8, 4))
    hook.save_tensor("first", [1], "mine")
    model.fc.weight.register_post_accumulate_grad_hook(lambda _: left.append(num_hooks(model)))
    output.sum().backward(retain_graph=True)
    hook.save_tensor("second", [2], "mine")
    output.sum().backward()
    assert left == [1, 1]
    model(torch.randn(8, 4))
    assert (saved(hook, at, "first"), saved(hook, at, "second")) == ({0: 1}, {0: 2})


@in_folder
def test_a_phase_that_has_been_chosen_counts_before_its_first_step(at, lines):
    hook, model = make(at, save_config=debugger.SaveConfig(save_interval=5))
    hook.set_mode(ModeKeys.TRAIN)
    train(model, 2)
    hook.set_mode(ModeKeys.EVAL)
    hook.save_tensor("mine", [7], "mine")
    train(model, 1)
    hook.close()
    assert debugger.create_trial(at).tensor("mine").steps(mode=ModeKeys.EVAL) == [0]


# Names of the tensors in collections.


@in_folder
def test_collections_of_hook_and_trial_know_the_names_of_saved_tensors(at, lines):
    hook, model = make(at, include_collections=["weights", "gradients"])
    train(model, 2)
    weights = {"Net_fc.weight", "Net_out.weight"}
    losses = hook.collection_manager.get("losses").tensor_names
    assert hook.collection_manager.get("weights").tensor_names == weights
    assert "gradient/Net_fc.bias" in hook.get_collection("gradients").tensor_names
    assert hook.collection_manager.get("biases").tensor_names == set()  # not saved
    hook.close()
    trial = debugger.create_trial(at)
    assert trial.collection("weights").tensor_names == weights
    assert trial.collections()["losses"].tensor_names == set(losses) != set()
    assert set(losses) < set(trial.tensor_names())


@in_folder
def test_names_that_a_program_assigns_to_a_collection_are_saved(at, lines):
    hook, model = make(at, include_collections=["mine"])
    hook.get_collection("mine").tensor_names = ["fc_output_0"]
    train(model, 1)
    hook.close()
    assert debugger.create_trial(at).tensor_names(collection="mine") == ["fc_output_0"]


# Steps of collections that the program has looked at.


@in_folder
def test_later_steps_of_the_hook_reach_collections_that_were_read_and_not_changed(at, lines):
    hook, model = make(at, include_collections=["weights", "biases", "gradients"])
    hook.get_collections()["biases"].save_config.save_interval = 3
    hook.get_collection("gradients").save_config = debugger.SaveConfig(save_interval=1)
    train(model, 1)
    hook.save_config = debugger.SaveConfig(save_interval=2)
    train(model, 4)
    hook.save_config.save_interval = 5
    train(model, 2)
    assert hook.get_collection("weights").save_config.should_save_step(ModeKeys.TRAIN, 5)
    hook.close()
    trial = debugger.create_trial(at)
    assert trial.tensor("Net_fc.weight").steps() == [0, 2, 4, 5]
    assert trial.tensor("CrossEntropyLoss_output_0").steps() == [0, 2, 4, 5]
    assert trial.tensor("Net_fc.bias").steps() == [0, 3, 6]
    assert trial.tensor("gradient/Net_fc.bias").steps() == [0, 1, 2, 3, 4, 5, 6]


# Modules that a step calls several times.


class Shared(Net):
    """Calls its ReLU twice, as torchvision's blocks do; the second call may be computed again in the backward pass."""

    def __init__(self, again=False):
        super().__init__()
        self.again = again

    def forward(self, x):
        hidden = self.relu(self.fc(x))
        more = hidden + 1
        if self.again:
            return self.out(torch.utils.checkpoint.checkpoint(self.relu, more, use_reentrant=False))
        return self.out(self.relu(more))


@in_folder
def test_values_of_a_module_s_next_call_have_the_next_numbers(at, lines):
    for again in (False, True):
        hook = smd.Hook(at / str(again), save_config=EVERY, save_all=True)
        model = Shared(again)
        hook.register_module(model)
        train(model, 2)
        hook.close()
        trial = debugger.create_trial(at / str(again))
        names = [f"relu_{side}_{number}" for side in ("input", "output") for number in (0, 1)]
        assert sorted(trial.tensor_names(regex="^relu_")) == names
        for step in (0, 1):
            first, second = (trial.tensor(f"relu_output_{number}").value(step) for number in (0, 1))
            assert np.array_equal(second, first + 1)
        assert trial.tensor_names(regex=".*relu_output") == names[2:]


# Private names of smdebug that public scripts and rules use.


class CountsEvaluations(debugger.Rule):
    """As in the example of iterative pruning."""

    def __init__(self, base_trial):
        super().__init__(base_trial)
        self.seen = []

    def invoke_at_step(self, step):
        if self.base_trial._global_to_mode[step][0] == smd.modes.EVAL:
            self.seen.append(self.base_trial._global_to_mode[step][1])
        return False


@in_folder
def test_rules_of_public_examples_find_the_phases_of_steps(at, lines):
    hook, model = make(at)
    for mode in (ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.TRAIN, ModeKeys.EVAL):
        hook.set_mode(mode)
        train(model, 2)
    hook._cleanup()
    trial = debugger.create_trial(at)
    assert trial.loaded_all_steps
    rule = CountsEvaluations(trial)
    for step in trial.steps():
        rule.invoke(step)
    assert rule.seen == [0, 1, 2, 3]
    assert dict(trial._global_to_mode)[7] == (ModeKeys.EVAL, 3)
    assert 8 not in trial._global_to_mode
