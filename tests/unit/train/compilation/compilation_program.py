"""Functions on the hook around models, run where torch is installed, with Dynamo and AOTAutograd but no Inductor."""

import copy
import os
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

os.environ |= {
    "CLARY_COMPILE": "1",
    "CLARY_AMP": "0",
    "TORCHINDUCTOR_CACHE_DIR": os.environ["PROGRAM_FOLDER"] + "/compiled",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
}

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from clary.train.compilation import facts, outermost, policies
from clary.train.compilation.precision import Autocast, in_float32
from clary.train.compilation.report import Report
from clary.train.compilation.wishes import Wishes

EMULATED = (
    f"; {policies._EMULATED}" if facts._is_bfloat16_emulated() else ""
)  # if the processor of this machine emulates bfloat16

torch.set_num_threads(1)
ORIGINAL = nn.Module.__call__
AOT_EAGER = torch._dynamo.lookup_backend("aot_eager")
# In place of Inductor, which runs a C++ compiler for seconds; jobs of the integration tests use Inductor.
torch._dynamo.lookup_backend = lambda name: lambda graph, inputs, config_patches: AOT_EAGER(graph, inputs)
WATCH = outermost.install()


class SpiedReport(Report):
    """Records the lines."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def say(self, line, *, every_rank=False):
        self.lines.append(line)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.drop = nn.Linear(8, 8), nn.Linear(8, 2), nn.Dropout(0.2)

    def forward(self, x):
        return self.second(self.drop(functional.gelu(self.first(x))))


class Recomputing(Net):
    def forward(self, x):
        return self.second(checkpoint(self.first, x, use_reentrant=False))


class Pair(NamedTuple):
    a: Any
    b: Any


def watched(**wishes):
    """Return a fresh report, and set it in the single hook of this process."""
    torch._dynamo.reset()  # after Dynamo has failed once to trace a function, it skips the function permanently
    report = SpiedReport()
    WATCH._report, WATCH._wishes, WATCH._num_compiled = report, Wishes(**wishes), 0
    return report


def losses_of(model, steps=4, call=None):
    torch.manual_seed(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        x = torch.randn(4, 8)
        loss = (call or model)(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def made(kind=Net):
    torch.manual_seed(1)
    return kind()


def test_a_compiled_model_has_the_losses_and_the_names_of_an_eager_one():
    watched()
    expected = losses_of(made())
    report, model = watched(compiles=True), made()
    found = losses_of(model)
    assert all(abs(a - b) < 1e-5 for a, b in zip(found, expected, strict=True)), (found, expected)
    (line,) = report.lines
    assert line.startswith("compiled Net by torch.compile (inductor), 1 graph, 0 breaks, in "), line
    assert list(model.state_dict()) == list(made().state_dict())
    assert copy.deepcopy(model)._compiled_call_impl is None
    assert "_compiled_call_impl" not in model.__getstate__(), "pickles hold the model alone"
    model.eval()
    with torch.no_grad():
        model(torch.randn(3, 8))
    assert len(report.lines) == 1, "evaluation runs as it is"


def test_models_without_gradients_and_calls_in_evaluation_are_ignored():
    report, model = watched(compiles=True), made()
    model.eval()
    model(torch.randn(2, 8))
    with torch.no_grad():
        made()(torch.randn(2, 8))
    nn.CrossEntropyLoss()(torch.randn(2, 3), torch.tensor([0, 1]))
    assert report.lines == []
    assert model._compiled_call_impl is None


def test_a_model_that_the_program_compiles_itself_is_left_alone():
    report, model = watched(compiles=True), made()
    model.compile(backend="eager")
    losses_of(model)
    losses_of(torch.compile(made(), backend="eager"))
    inner = made()
    inner.first = torch.compile(inner.first, backend="eager")
    losses_of(inner)
    assert report.lines == [
        f"not compiled: {name}: the program has it compiled itself" for name in ("Net", "OptimizedModule", "Net")
    ]


def test_a_function_that_the_program_compiles_is_one_graph_with_and_without_the_hook():
    report, model, graphs = watched(compiles=True), made(), []
    model.second.register_forward_hook(lambda module, inputs, output: output * 2)

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    losses_of(model, call=torch.compile(lambda x: model(x), backend=backend, fullgraph=True))
    assert len(graphs) == 1
    assert report.lines == []


def test_a_part_that_is_recomputed_in_the_backward_pass_is_no_model():
    report, model = watched(mixes_precision=True), made(Recomputing)
    losses_of(model)
    assert report.lines == [f"Recomputing trains under autocast in bfloat16 (sagemaker_amp){EMULATED}"]


def test_calls_while_tracing_and_with_fake_tensors_are_ignored():
    report, model = watched(compiles=True), made()
    torch.jit.trace(model, torch.randn(2, 8), check_trace=False)
    with torch._subclasses.fake_tensor.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        model(mode.from_tensor(torch.randn(2, 8)))
    torch.func.grad(lambda x: model(x).sum())(torch.randn(2, 8))
    torch.fx.symbolic_trace(model)
    assert report.lines == []
    assert model._compiled_call_impl is None


def test_lazy_modules_are_judged_once_they_have_shapes():
    report, model = watched(mixes_precision=True), nn.Sequential(nn.LazyLinear(2))
    model(torch.randn(2, 8))
    assert report.lines == []
    model(torch.randn(2, 8))
    assert report.lines == [f"Sequential trains under autocast in bfloat16 (sagemaker_amp){EMULATED}"]


def test_an_error_of_the_program_is_raised_unchanged():
    watched(compiles=True)
    model = made()
    told = ""
    try:
        model(torch.randn(2, 7))
    except RuntimeError as error:
        told = str(error)
    assert "shape" in told, told


def test_after_an_error_of_the_compiler_the_model_runs_eagerly():
    report, model = watched(compiles=True), made()
    losses_of(model, steps=1)
    compiled = model._compiled_call_impl

    def fail(*_arguments):
        raise torch._dynamo.exc.InternalTorchDynamoError("no way")

    compiled._compiled = fail
    assert model(torch.randn(2, 8)).shape == (2, 2)
    assert model._compiled_call_impl is None
    assert report.lines[-1] == "not compiled: Net: no way"


def test_results_are_float32_in_every_container():
    half = torch.ones(2, dtype=torch.bfloat16)
    found = in_float32({"a": [half, (half, 1)], "b": Pair(half, "x"), "c": OrderedDict(d=half)})
    assert found["a"][0].dtype == found["a"][1][0].dtype == found["b"].a.dtype == found["c"]["d"].dtype == torch.float32
    assert isinstance(found["b"], Pair)
    assert isinstance(found["c"], OrderedDict)
    same = {"a": torch.ones(2), "b": [1]}
    assert in_float32(same) is same
    result = Autocast("cpu", "bfloat16").run(made(), torch.randn(2, 8))
    assert result.dtype == torch.float32


def test_the_programs_own_autocast_wins():
    report, model = watched(mixes_precision=True), made()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(torch.randn(2, 8)).dtype == torch.bfloat16
    assert report.lines == ["sagemaker_amp leaves Net as it is: the program runs it under autocast itself"]


def test_facts_of_a_model():
    model = made()
    model.first.weight.requires_grad = False
    found = facts.model_facts(model)
    assert (found.name, found.num_trainable, found.wrapper) == ("Net", 3, "")
    assert (found.device_types, found.dtypes) == ({"cpu"}, {"float32"})
    assert facts.model_facts(nn.DataParallel(model)).wrapper == "DataParallel"
    assert facts.model_facts(nn.DataParallel(model)).name == "Net"


def test_a_second_installation_adds_no_second_hook():
    assert outermost.install() is None
    assert nn.Module.__call__.__wrapped__ is ORIGINAL


def test_debug_mode_writes_its_folder_and_stops_if_it_cannot():
    folder = Path(os.environ["PROGRAM_FOLDER"]) / "debug"
    report = Report(str(folder))
    report.breaks({"a reason\nmore of it": 2})
    report.say("a line")
    assert (folder / "rank-0.txt").read_text() == "graph break, 2 times:\n    a reason\n    more of it\na line\n"
    (folder / "file").touch()
    broken = Report(str(folder / "file"))
    broken.note("x")
    broken.note("y")
