"""The hook in small trainings: saved tensors, their names and steps, read back by a trial."""

import copy
import functools
import gc
import json
import logging
import os
import tempfile
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch._subclasses import FakeTensorMode
from torch.optim import optimizer as optimizer_module
from torch.utils._python_dispatch import TorchDispatchMode

from clary.agent.checkpoints.folder import CheckpointFolder
from clary.agent.checkpoints.step_counts import StepCountSource, leave_restored
from clary.contract.checkpoint_sets import CheckpointFile
from clary.contract.step_counts import FOLDER_VARIABLE, RestoredCounts, StepCounts
from clary.train import debugger
from clary.train.debugger.capture import losses
from clary.train.debugger.capture import writing as writing_module
from clary.train.debugger.errors import (
    NoMoreData,
    StepUnavailable,
    TensorUnavailableForStep,
)
from clary.train.debugger.hook import Hook, del_hook, get_hook
from clary.train.debugger.modes import ModeKeys

torch.set_num_threads(1)

CLOCK_TICK_S = 0.02  # file times are those of the kernel's last tick, which is at most 10 ms old


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 3)
        self.relu = torch.nn.ReLU()
        self.out = torch.nn.Sequential(torch.nn.Tanh(), torch.nn.Linear(3, 2))

    def forward(self, x):
        return self.out(self.relu(self.fc(x)))


def in_folder(test):
    """Run a test with a new folder, and remove the hook afterwards."""

    @functools.wraps(test)
    def run():
        with tempfile.TemporaryDirectory(prefix="clary-debugger-") as at:
            try:
                test(Path(at))
            finally:
                del_hook()
                assert F.cross_entropy.__module__ == "torch.nn.functional"
                assert not hasattr(F.cross_entropy, "__wrapped__")

    return run


def train(model, num_steps, *, seed=0, loss=lambda *given: F.cross_entropy(*given), after=None):
    torch.manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    seen = []
    for step in range(num_steps):
        batch, labels = torch.randn(8, 4), torch.randint(0, 2, (8,))
        optimizer.zero_grad()
        value = loss(model(batch), labels)
        value.backward()
        seen.append(
            {
                "loss": value.item(),
                "gradients": {name: one.grad.clone() for name, one in model.named_parameters()},
                "batch": batch,
                "labels": labels,
            }
        )
        if after:
            after(step)
        optimizer.step()
    return seen


def make(at, **options):
    options.setdefault("save_config", debugger.SaveConfig(save_interval=2))
    return Hook(at, strict=True, **options)


def refused(call, kind, *words):
    try:
        call()
    except kind as error:
        told = str(error)
    else:
        raise AssertionError(f"nothing was raised; expected {words}")
    assert all(word in told for word in words), told


@in_folder
def test_weights_gradients_and_losses_are_read_back_bit_by_bit(at):
    torch.manual_seed(1)
    model = Net()
    before = {name: one.detach().clone() for name, one in model.named_parameters()}
    hook = make(at, include_collections=["weights", "biases", "gradients"])
    hook.register_module(model)
    seen = train(model, 5)
    hook.close()
    trial = debugger.create_trial(at)
    assert trial.steps() == [0, 2, 4]
    assert trial.tensor_names(collection="losses") == ["CrossEntropyLoss_output_0"]
    assert trial.tensor_names(collection="weights") == ["Net_fc.weight", "Net_out.1.weight"]
    assert trial.tensor_names(regex="^gradient.*bias") == ["gradient/Net_fc.bias", "gradient/Net_out.1.bias"]
    assert trial.workers() == ["worker_0"]
    for step in (0, 2, 4):
        assert np.float32(seen[step]["loss"]) == trial.tensor("CrossEntropyLoss_output_0").value(step)
        for name, gradient in seen[step]["gradients"].items():
            assert np.array_equal(trial.tensor(f"gradient/Net_{name}").value(step), gradient.numpy())
    for name, value in before.items():
        assert np.array_equal(trial.tensor(f"Net_{name}").value(0), value.numpy())
    refused(lambda: trial.tensor("Net_fc.weight").value(1), StepUnavailable, "step 1 of mode GLOBAL was not saved")
    refused(lambda: trial.wait_for_steps([6]), NoMoreData, "training has ended", "4")


@in_folder
def test_inputs_and_outputs_of_modules_are_saved_by_expression_and_by_class(at):
    model = Net()
    hook = make(at)
    hook.add_collection(debugger.Collection("relu_output", [".*relu_output"]))
    hook.add_collection(debugger.Collection("tanh_input", [".*tanh_input"]))
    hook.get_collection("of the layer").add_module_tensors(model.fc, inputs=True)
    hook.register_module(model)
    seen = train(model, 1)
    hook.close()
    trial = debugger.create_trial(at)
    assert trial.tensor_names(collection="relu_output") == ["relu_output_0"]
    assert trial.tensor_names(regex=".*tanh_input") == ["out.0_input_0"]  # matched by its class
    assert trial.tensor_names(collection="of the layer") == ["fc_input_0", "fc_output_0"]
    assert np.array_equal(trial.tensor("fc_input_0").value(0), seen[0]["batch"].numpy())
    assert np.array_equal(trial.tensor("relu_output_0").value(0), trial.tensor("out.0_input_0").value(0))


@in_folder
def test_an_output_of_a_module_is_saved_by_its_full_name(at):
    model = Net()
    hook = make(at)
    hook.get_collection("mine").add_tensor_name("relu_output_0")
    hook.register_module(model)
    train(model, 1)
    hook.close()
    assert debugger.create_trial(at).tensor_names(collection="mine") == ["relu_output_0"]


@in_folder
def test_reductions_equal_those_of_numpy_and_need_no_saved_values(at):
    model = Net()
    names = ["min", "max", "mean", "std", "variance", "sum", "prod"]
    config = debugger.ReductionConfig(reductions=names, abs_reductions=names, norms=["l1", "l2"], abs_norms=["l1"])
    hook = make(at, include_collections=["weights"], reduction_config=config)
    hook.register_module(model)
    value = model.fc.weight.detach().numpy().copy()
    train(model, 1)
    hook.close()
    tensor = debugger.create_trial(at).tensor("Net_fc.weight")
    assert tensor.shape(0) == (3, 4)
    refused(lambda: tensor.value(0), TensorUnavailableForStep, "only reductions")
    assert len(tensor.reduction_values(0)) == 17
    for name in names:
        word = {"variance": "var"}.get(name, name)
        for is_absolute, values in ((False, value), (True, np.abs(value))):
            found = tensor.reduction_value(0, name, abs=is_absolute)
            assert np.isclose(found, getattr(np, word)(values), rtol=1e-4), (name, is_absolute)
    assert np.isclose(tensor.reduction_value(0, "l2"), np.linalg.norm(value), rtol=1e-5)


@in_folder
def test_phases_are_counted_separately_with_their_own_intervals(at):
    model = Net()
    config = debugger.SaveConfig(
        {
            ModeKeys.TRAIN: debugger.SaveConfigMode(save_interval=3),
            ModeKeys.EVAL: debugger.SaveConfigMode(save_interval=2),
        }
    )
    hook = make(at, save_config=config, include_collections=["gradients"])
    hook.register_module(model)
    for _ in range(2):
        hook.set_mode(ModeKeys.TRAIN)
        train(model, 4)
        hook.set_mode(ModeKeys.EVAL)
        with torch.no_grad():
            for _ in range(3):
                F.cross_entropy(model(torch.randn(2, 4)), torch.zeros(2, dtype=torch.long))
    hook.close()
    trial = debugger.create_trial(at)
    assert trial.steps(mode=ModeKeys.TRAIN) == [0, 3, 6]
    assert trial.steps(mode=ModeKeys.EVAL) == [0, 2, 4]
    assert trial.steps() == [0, 3, 4, 6, 9, 12]
    assert trial.modes() == [ModeKeys.TRAIN, ModeKeys.EVAL]
    assert trial.global_step(ModeKeys.EVAL, 4) == 12
    assert (trial.mode(12), trial.mode_step(12)) == (ModeKeys.EVAL, 4)
    loss = trial.tensor("CrossEntropyLoss_output_0")
    assert loss.value(6, mode=ModeKeys.TRAIN) == loss.value(9)
    assert loss.steps(mode=ModeKeys.EVAL) == [0, 2, 4]
    assert trial.tensor_names(step=2, mode=ModeKeys.EVAL) == ["CrossEntropyLoss_output_0"]
    assert loss.prev_steps(9, 2) == [9, 6]


@in_folder
def test_scalars_and_custom_tensors_are_saved_with_their_step(at):
    model = Net()
    hook = make(at, save_config=debugger.SaveConfig(save_interval=1))
    hook.register_module(model)

    def after(step):
        hook.save_scalar("lr", 0.5 / (step + 1), sm_metric=True)
        hook.save_tensor("labels", np.array([step, 1]), collections_to_write="labels")
        hook.record_tensor_value("my_loss", torch.tensor(float(step)))

    train(model, 2, after=after)
    hook.close()
    trial = debugger.create_trial(at)
    assert trial.tensor("scalar/lr").values() == {0: 0.5, 1: 0.25}
    assert trial.tensor_names(collection="sm_metrics") == ["scalar/lr"]
    assert trial.tensor_names(collection="labels") == ["labels"]
    assert trial.tensor("labels").value(1).tolist() == [0, 1], "a value after the backward pass is the next step's"
    assert trial.tensor("my_loss_output_0").value(1) == 1.0
    assert "my_loss_output_0" in trial.tensor_names(collection="losses")


@in_folder
def test_types_that_files_do_not_have_are_read_back_as_the_nearest_type(at):
    model = Net()
    hook = make(at, save_config=debugger.SaveConfig(save_interval=1))
    hook.register_module(model)
    values = {
        "bf16": torch.tensor([1.5, -2.0, 3.140625], dtype=torch.bfloat16),
        "bool": torch.tensor([True, False]),
        "nothing": torch.empty(0, 3),
        "complex": torch.tensor([1 + 2j]),
        "half": torch.tensor(0.5, dtype=torch.float16),
        "sparse": torch.eye(2).to_sparse(),
        "turned": torch.arange(6.0).view(2, 3).t(),
    }
    train(model, 1, after=lambda _: [hook.save_tensor(*one) for one in values.items()])
    hook.close()
    trial = debugger.create_trial(at)
    assert trial.tensor("bf16").value(0).tolist() == [1.5, -2.0, 3.140625]
    assert trial.tensor("nothing").value(0).shape == (0, 3)
    assert trial.tensor("sparse").value(0).tolist() == [[1, 0], [0, 1]]
    for name in ("bool", "complex", "half", "turned"):
        assert np.array_equal(trial.tensor(name).value(0), values[name].numpy()), name


@in_folder
def test_the_state_of_the_optimizer_is_saved_after_its_step(at):
    model = Net()
    hook = make(at, include_collections=["optimizer_variables"])
    hook.register_module(model)
    seen = train(model, 1)
    hook.close()
    trial = debugger.create_trial(at)
    assert len(trial.tensor_names(collection="optimizer_variables")) == 4
    kept = trial.tensor("optimizer/Net_fc.weight_momentum_buffer").value(0)
    assert np.array_equal(kept, seen[0]["gradients"]["fc.weight"].numpy())


@in_folder
def test_custom_loss_modules_are_losses_and_one_called_twice_has_two_names(at):
    class MyLoss(torch.nn.modules.loss._Loss):
        def forward(self, given, target):
            return (given[:, 0] - target).abs().mean()

    mine, other = MyLoss(), torch.nn.CrossEntropyLoss()
    hook = make(at)
    model = Net()
    hook.register_module(model)
    hook.register_loss(mine)
    train(model, 1, loss=lambda given, labels: mine(given, labels) + other(given, labels) + other(given, labels))
    hook.close()
    names = debugger.create_trial(at).tensor_names(collection="losses")
    assert names == ["CrossEntropyLoss_output_0", "CrossEntropyLoss_output_0_1", "MyLoss_output_0"]


@in_folder
def test_a_loss_that_torch_calls_again_under_a_default_device_has_one_name(at):
    hook = make(at)
    model = Net()
    hook.register_module(model)
    with torch.device("cpu"):  # a mode of torch, which calls each function once more
        train(model, 3)
    hook.close()
    trial = debugger.create_trial(at)
    assert trial.tensor_names(collection="losses") == ["CrossEntropyLoss_output_0"]
    assert trial.tensor("CrossEntropyLoss_output_0").steps() == [0, 2]


@in_folder
def test_no_torch_hook_is_registered_between_saved_steps(at):
    model = Net()
    hook = make(at, save_all=True, save_config=debugger.SaveConfig(save_interval=100))
    hook.register_module(model)
    train(model, 2)
    assert not torch.nn.modules.module._global_forward_hooks
    assert not optimizer_module._global_optimizer_pre_hooks
    assert all(not one._post_accumulate_grad_hooks for one in model.parameters())
    assert all(not one._forward_hooks for one in model.modules())
    hook.close()
    assert not model._forward_pre_hooks
    names = debugger.create_trial(at).tensor_names()
    assert {"Net_fc.weight", "gradient/Net_fc.weight", "fc_output_0", "CrossEntropyLoss_input_1"} <= set(names)


@in_folder
def test_names_are_those_of_the_unwrapped_model(at):
    model = Net()
    compiled = torch.compile(model, backend="eager")
    hook = make(at, include_collections=["weights", "gradients"])
    hook.register_module(compiled)
    train(compiled, 1)
    hook.close()
    names = debugger.create_trial(at).tensor_names()
    assert {"Net_fc.weight", "gradient/Net_fc.weight", "CrossEntropyLoss_output_0"} <= set(names)


@in_folder
def test_a_trial_reads_while_the_training_runs(at):
    trial = debugger.create_trial(at)
    assert trial.steps() == []
    model = Net()
    hook = make(at, save_config=debugger.SaveConfig(save_interval=1))
    hook.register_module(model)
    found = []

    def look():
        trial.wait_for_steps([2], limit_s=30)
        found.extend(trial.tensor("CrossEntropyLoss_output_0").values())

    thread = threading.Thread(target=look)
    thread.start()
    train(model, 5)
    thread.join(40)
    assert found[:3] == [0, 1, 2]
    hook.close()
    assert trial.steps() == [0, 1, 2, 3, 4]
    assert trial.has_ended


@in_folder
def test_a_slow_disk_drops_steps_and_their_number_is_recorded(at):
    original, may_write = writing_module.write_step, threading.Event()

    def slow(*given):
        may_write.wait(30)
        return original(*given)

    writing_module.write_step = slow
    try:
        model = Net()
        hook = make(at, save_config=debugger.SaveConfig(save_interval=1), limit_s=0.05)
        hook.register_module(model)
        train(model, 6)
        assert hook.num_dropped >= 3
        hook._output._saver.limit_s = 30
        may_write.set()
        hook.close()
    finally:
        may_write.set()
        writing_module.write_step = original
    ended = json.loads((at / "ended" / "worker_0.json").read_text())
    assert ended["num_dropped"] == hook.num_dropped
    assert len(debugger.create_trial(at).steps()) == 6 - hook.num_dropped == ended["num_written"]


@in_folder
def test_a_full_disk_costs_steps_but_not_the_training(at):
    original = writing_module.write_step
    failures = iter([True])

    def full(*given):
        if next(failures, False):
            raise OSError(28, "no space is left, said for this test")
        return original(*given)

    writing_module.write_step = full
    try:
        model = Net()
        hook = make(at)
        hook.register_module(model)
        train(model, 5)
        hook.close()
    finally:
        writing_module.write_step = original
    assert debugger.create_trial(at).steps() == [2, 4]
    assert json.loads((at / "ended" / "worker_0.json").read_text())["num_failed"] == 1


@in_folder
def test_a_failure_in_the_hook_ends_the_saving_but_not_the_training(at):
    logging.getLogger("clary.debugger").setLevel(logging.CRITICAL)
    model = Net()
    hook = Hook(at, save_config=debugger.SaveConfig(save_interval=1), include_collections=["weights"])
    hook.register_module(model)
    train(model, 2)
    hook._capture._chooser.wants = None  # simulates a defect
    seen = train(model, 2)
    logging.getLogger("clary.debugger").setLevel(logging.NOTSET)
    assert len(seen) == 2
    assert isinstance(hook.failure, TypeError)
    assert not torch.nn.modules.module._global_forward_hooks
    hook.close()
    assert debugger.create_trial(at).steps() == [0, 1]
    assert "TypeError" in json.loads((at / "ended" / "worker_0.json").read_text())["failure"]


@in_folder
def test_gradients_of_several_backward_passes_in_a_step_are_accumulated(at):
    model = Net()
    hook = make(at, include_collections=["gradients"])
    hook.register_module(model)
    value = F.cross_entropy(model(torch.randn(2, 4)), torch.tensor([0, 1]))
    value.backward(retain_graph=True)
    value.backward()
    expected = model.fc.weight.grad.numpy().copy()
    hook.close()
    assert np.array_equal(debugger.create_trial(at).tensor("gradient/Net_fc.weight").value(0), expected)


@in_folder
def test_only_the_first_rank_saves_unless_all_ranks_are_requested(at):
    for workers, expected in (("one", ["worker_0"]), ("all", ["worker_0", "worker_1"])):
        for rank in (1, 0):
            os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2"}
            try:
                hook = make(at / workers, include_workers=workers)
                hook.register_module(model := Net())
                train(model, 1)
                if (rank, workers) == (1, "all"):
                    hook.close()
                    assert (
                        debugger.create_trial(at / workers).steps() == []
                    )  # the other worker may still save this step
                hook.close()
            finally:
                del os.environ["RANK"], os.environ["WORLD_SIZE"]
        trial = debugger.create_trial(at / workers)
        assert trial.workers() == expected
        assert trial.tensor("CrossEntropyLoss_output_0").workers(0) == expected
        assert trial.has_ended


@in_folder
def test_copied_or_pickled_models_contain_nothing_of_the_hook(at):
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
    hook = make(at / "tensors", save_all=True, save_config=debugger.SaveConfig(save_interval=1))
    hook.register_module(model)
    twins = []

    def after(_):
        twins.append(copy.deepcopy(model))
        torch.save(model, at / "whole")

    train(model, 1, after=after)
    assert b"clary" not in (at / "whole").read_bytes()
    twins.append(torch.load(at / "whole", weights_only=False))
    for twin in twins:
        assert twin(torch.zeros(1, 4)).shape == (1, 2)
    assert hook.step == 0
    hook.close()


@in_folder
def test_the_steps_of_a_collection_may_be_changed_in_the_program(at):
    hook = make(at, save_config=debugger.SaveConfig(save_interval=1), include_collections=["weights", "biases"])
    hook.get_collection("losses").save_config.end_step = 0
    hook.get_collection("biases").save_config = debugger.SaveConfigMode(save_interval=2)
    model = Net()
    hook.register_hook(model)
    train(model, 3)
    hook.close()
    trial = debugger.create_trial(at)
    assert trial.tensor_names(collection="losses") == []
    assert trial.tensor("Net_fc.bias").steps() == [0, 2]
    assert trial.tensor("Net_fc.weight").steps() == [0, 1, 2]


@in_folder
def test_collections_may_be_read_while_a_step_is_saved(at):
    hook = make(at, include_collections=["weights", "gradients"])
    hook.register_module(model := Net())
    value = F.cross_entropy(model(torch.randn(2, 4)), torch.tensor([0, 1]))
    assert hook.get_collections()["gradients"] is hook.get_collection("gradients")
    value.backward()
    hook.close()
    assert debugger.create_trial(at).tensor("gradient/Net_fc.weight").steps() == [0]


@in_folder
def test_a_compiled_model_is_found_automatically(at):
    model = torch.compile(Net(), backend="eager")
    hook = make(at, include_collections=["gradients"])
    hook.watch_for_model()
    train(model, 3)
    hook.close()
    trial = debugger.create_trial(at)
    assert trial.tensor("gradient/Net_fc.weight").steps() == [0, 2]
    assert trial.tensor("CrossEntropyLoss_output_0").steps() == [0, 2]


@in_folder
def test_unsupported_options_are_refused_by_name(at):
    refused(lambda: Hook(at, include_workers="some"), ValueError, "include_workers", "'one' or 'all'")
    refused(lambda: Hook(at, limit_s=0), ValueError, "limit_s is 0")
    hook = Hook(at)
    refused(lambda: hook.register_module(len), debugger.DebuggerError, "register_module was given a builtin")
    refused(lambda: hook.set_mode("train"), ValueError, "expected one of")
    hook.close()
    assert os.listdir(at) == []


@in_folder
def test_a_forked_child_saves_nothing(at):
    model = Net()
    hook = make(at, save_config=debugger.SaveConfig(save_interval=1))
    hook.register_module(model)
    train(model, 1)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            model(torch.zeros(1, 4))
            hook.close()
            status = 0
        finally:
            os._exit(status)
    deadline = time.monotonic() + 30
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert ended == (child, 0)
    assert not list((at / "ended").iterdir()) if (at / "ended").exists() else True
    hook.close()
    assert debugger.create_trial(at).steps() == [0]


def test_the_program_has_one_hook():
    with tempfile.TemporaryDirectory() as at:
        assert get_hook() is None
        (Path(at) / "hook.json").write_text(json.dumps({"LocalPath": at}))
        first = get_hook(Path(at) / "hook.json", create_if_not_exists=True)
        assert get_hook() is first
        second = Hook.create_from_json_file(Path(at) / "hook.json")
        assert get_hook() is second
        assert losses._listeners == [second._capture._listener]
        del_hook()
        assert get_hook() is None


def watched(at, interval=1):
    """Return a hook as a job creates it: the hook finds the model itself."""
    hook = make(at, save_config=debugger.SaveConfig(save_interval=interval), include_collections=["weights"])
    hook.is_automatic = True
    hook.watch_for_model()
    return hook


@in_folder
def test_scripted_losses_and_models_work_as_without_a_hook(at):
    hook = watched(at)
    loss = torch.jit.script(torch.nn.CrossEntropyLoss())
    model = torch.jit.script(Net())
    given, target = torch.ones(2, 4), torch.tensor([0, 1])
    assert torch.equal(loss(model(given), target), F.cross_entropy(model(given), target))
    traced = torch.jit.trace(Net(), given)
    assert traced(given).shape == (2, 2)
    assert "uint8" not in str(traced.inlined_graph)
    assert hook.failure is None
    hook.close()


@in_folder
def test_a_model_whose_methods_raise_ends_the_saving_but_not_the_program(at):
    class Odd(Net):
        def named_modules(self, *args, **kwargs):
            raise ValueError("not here")

    hook = watched(at)
    logging.disable(logging.CRITICAL)
    try:
        assert Odd()(torch.zeros(1, 4)).shape == (1, 2)
    finally:
        logging.disable(logging.NOTSET)
    assert "not here" in str(hook.failure)


@in_folder
def test_a_model_that_the_program_deletes_is_not_kept_alive(at):
    watched(at)
    model = Net()
    model(torch.zeros(1, 4)).sum().backward()
    gone = weakref.ref(model.fc), weakref.ref(model.fc.weight)
    del model
    gc.collect()
    assert [one() for one in gone] == [None, None]


@in_folder
def test_the_programs_default_device_and_inference_mode_do_not_matter(at):
    hook = watched(at)
    model = Net()
    with torch.inference_mode():
        model(torch.zeros(1, 4))
        model(torch.zeros(1, 4))
    torch.set_default_device("meta")
    try:
        for _ in range(4):
            model(torch.zeros(1, 4, device="cpu"))
    finally:
        torch.set_default_device(None)
    hook.close()
    assert hook.failure is None
    trial = debugger.create_trial(at)
    assert trial.steps() == [0, 1, 2, 3, 4, 5]
    assert np.array_equal(trial.tensor("Net_fc.weight").value(4), model.fc.weight.detach().numpy())


@in_folder
def test_dispatch_modes_and_transforms_see_no_operation_of_the_hook(at):
    class Counting(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.count += 1
            return func(*args, **(kwargs or {}))

    def count(model):
        with Counting() as mode:
            model(torch.zeros(1, 4))
        return mode.count

    without = count(Net())
    hook = watched(at)
    model = Net()
    assert count(model) == without
    assert torch.func.vmap(model)(torch.zeros(3, 4)).shape == (3, 2)
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert model(torch.zeros(1, 4)).shape == (1, 2)
    hook.close()
    assert hook.failure is None
    assert not (at / "steps").exists()


@in_folder
def test_compiled_submodules_are_compiled_only_once(at):
    torch._dynamo.reset()
    hook = watched(at)
    model = Net()
    model.out[1] = torch.compile(model.out[1], backend="eager", fullgraph=True)
    graphs = torch._dynamo.utils.counters["stats"]
    before = graphs["unique_graphs"]
    train(model, 12)
    assert hook.step == 11
    assert hook.failure is None
    assert graphs["unique_graphs"] - before == 1


@in_folder
def test_lazy_parameters_are_saved_once_they_have_a_shape(at):
    hook = watched(at)
    model = torch.nn.Sequential(torch.nn.LazyLinear(2))
    train(model, 3)
    hook.close()
    assert hook.failure is None
    assert debugger.create_trial(at).tensor("Sequential_0.weight").steps() == [1, 2]


@in_folder
def test_the_hook_gives_up_on_a_program_that_trains_no_model(at):
    hook = watched(at)
    before = len(torch.nn.modules.module._global_forward_pre_hooks)
    hook._capture.modules._searched_s = 1e9
    Net().requires_grad_(False)(torch.zeros(1, 4))
    assert len(torch.nn.modules.module._global_forward_pre_hooks) == before - 1


@in_folder
def test_a_later_attempt_counts_from_the_checkpoint_from_which_it_resumes(at):
    counts, checkpoint = CheckpointFolder(at / "counts"), at / "model.pt"
    os.environ[FOLDER_VARIABLE] = str(counts.path)
    leave_restored(counts, RestoredCounts())

    def attempt(num_steps, save_at=None):
        model = Net()
        hook = make(at / "tensors", save_config=debugger.SaveConfig(save_interval=5))
        hook.register_module(model)
        hook.set_mode(ModeKeys.TRAIN)

        def after(step):
            if step == save_at:
                time.sleep(CLOCK_TICK_S)
                checkpoint.write_bytes(b"weights")
                time.sleep(CLOCK_TICK_S)

        train(model, num_steps, after=after)
        hook.set_mode(ModeKeys.EVAL)
        with torch.no_grad():
            F.cross_entropy(model(torch.zeros(1, 4)), torch.zeros(1, dtype=torch.long))
        hook.close()
        return hook

    try:
        first = attempt(14, save_at=11)
        assert first.step == 14
        source = StepCountSource(counts)
        source.look()
        modified_ns = checkpoint.stat().st_mtime_ns
        found = source.counts_of(
            [CheckpointFile(path="model.pt", size_bytes=7, sha256="", key="", modified_ns=modified_ns)]
        )
        assert found == StepCounts(11, 11, -1, -1), found
        leave_restored(counts, RestoredCounts(first=found))
        second = attempt(10)
        assert (second.step, second.mode_steps[ModeKeys.TRAIN], second.mode_steps[ModeKeys.EVAL]) == (22, 21, 0)
    finally:
        del os.environ[FOLDER_VARIABLE]
    trial = debugger.create_trial(at / "tensors")
    assert trial.steps() == [0, 5, 10, 15, 20, 22], trial.steps()  # step 14 was saved, too, but is lost work
    assert trial.steps(mode=ModeKeys.TRAIN) == [0, 5, 10, 15, 20]
    assert trial.written_at[10] < trial.written_at[15]
    third = attempt(1)
    assert third.step == 1, "without checkpoints each program counts from 0"
