"""Parameters whose initialisation is delayed. Functions `test_...()`; see `torch_programs`."""

import copy
import gc
import math
import re
import threading
from pathlib import Path

import torch
from torch import nn

from clary.train.parallel.memory import delayed
from clary.train.parallel.memory.delayed import delay_param_initialization, is_delayed, materialize
from clary.train.parallel.memory.recording import DelayedInitializationError

torch.set_num_threads(1)
SEED = 7


def raised(function, *arguments, **keywords):
    try:
        function(*arguments, **keywords)
    except Exception as error:  # noqa: BLE001 - whatever it is, the caller looks at it
        return error
    raise AssertionError("nothing was raised")


def made(make, **context):
    """Make a model with delayed initialisation; the numbers drawn next show the state of the generator."""
    torch.manual_seed(SEED)
    with delay_param_initialization(**context):
        model = make()
    return model, torch.rand(3)


def assert_as_eager(make, num_delayed=None):
    """Make a model eagerly and delayed; compare all values, the order of random draws, and shared parameters."""
    torch.manual_seed(SEED)
    eager = make()
    after = torch.rand(3)
    model, after_delayed = made(make)
    assert torch.equal(after, after_delayed)
    names = [name for name, parameter in model.named_parameters() if parameter.is_meta]
    assert len(names) == (len(list(model.parameters())) if num_delayed is None else num_delayed)
    torch.rand(11)  # draws between creation and materialisation do not matter
    state = torch.get_rng_state()
    assert set(names) <= set(materialize(model))
    assert torch.equal(torch.get_rng_state(), state)
    assert list(eager.state_dict()) == list(model.state_dict())
    for name, value in eager.state_dict().items():
        found = model.state_dict()[name]
        assert torch.equal(found, value), name
        assert found.stride() == value.stride()
        assert found.dtype == value.dtype
    for name, parameter in model.named_parameters():
        assert type(parameter) is nn.Parameter
        assert parameter.requires_grad == eager.get_parameter(name).requires_grad
    assert delayed._models == []
    return eager, model


def test_layers_of_torch_get_the_values_of_eager_initialisation():
    for make in (
        lambda: nn.Linear(5, 7),
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ConvTranspose1d(2, 3, 3)),
        lambda: nn.LSTM(6, 8, num_layers=2, bidirectional=True),
        lambda: nn.GRUCell(6, 8),
        lambda: nn.Embedding(50, 16, padding_idx=3),
        lambda: nn.EmbeddingBag(50, 16),
        lambda: nn.MultiheadAttention(16, 4, kdim=8, vdim=8),
        lambda: nn.Sequential(nn.LayerNorm(8), nn.GroupNorm(2, 8), nn.PReLU(), nn.Bilinear(3, 4, 5)),
        lambda: nn.Transformer(16, 4, num_encoder_layers=2, num_decoder_layers=2, dim_feedforward=32),
    ):
        assert_as_eager(make)


def test_layers_work_after_materialisation():
    for make, batch in (
        (lambda: nn.LSTM(6, 8, bidirectional=True), torch.rand(3, 2, 6)),
        (lambda: nn.TransformerEncoderLayer(16, 4, dropout=0.0), torch.rand(5, 2, 16)),
    ):
        eager, model = assert_as_eager(make)
        found, expected = model(batch), eager(batch)
        for one, other in zip(
            torch.utils._pytree.tree_leaves(found), torch.utils._pytree.tree_leaves(expected), strict=True
        ):
            assert torch.equal(one, other)
        torch.utils._pytree.tree_leaves(found)[0].sum().backward()
        assert all(parameter.grad is not None for parameter in model.parameters())


class Custom(nn.Module):
    """Initialises as scripts do: from values, by `apply`, by functions of `nn.init`, tied, in parts."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(40, 16)
        self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.scale = nn.Parameter(torch.ones(16) * 0.1)
        self.position = nn.Parameter(torch.randn(4, 16) / math.sqrt(16))
        self.frozen = nn.Parameter(torch.arange(6.0), requires_grad=False)
        self.head = nn.Linear(16, 40, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("mask", torch.tril(torch.ones(4, 4)))
        self.rates = [rate.item() for rate in torch.linspace(0, 0.3, 3)]
        self.apply(self.init)
        for name, parameter in self.named_parameters():
            if name.endswith("weight"):
                parameter.data.mul_(1 / math.sqrt(2 * len(self.blocks)))
        with torch.no_grad():
            self.blocks[1].weight.copy_(self.blocks[0].weight.t() * 2)
            self.blocks[2].weight[:, ::2].zero_()
            self.blocks[2].bias[3] = 5.0

    def init(self, module):
        if isinstance(module, nn.Linear):
            module.weight.data.normal_(mean=0.0, std=0.02)
            if module.bias is not None:
                module.bias.data.zero_()
        elif isinstance(module, nn.Embedding):
            nn.init.xavier_uniform_(module.weight)


def test_custom_initialisation_is_replayed():
    eager, model = assert_as_eager(Custom)
    assert model.head.weight is model.embedding.weight
    assert model.rates == eager.rates
    assert not model.frozen.requires_grad


def test_buffers_exist_at_once():
    model, _ = made(Custom)
    assert model.mask.device.type == "cpu"
    assert torch.equal(model.mask, torch.tril(torch.ones(4, 4)))
    materialize(model)


def filled(initialise, *shape):
    class Filled(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.empty(*shape))
            initialise(self.weight)

    return Filled


def test_functions_of_nn_init_are_replayed():
    for initialise in (
        nn.init.orthogonal_,
        nn.init.eye_,
        nn.init.kaiming_normal_,
        lambda weight: nn.init.trunc_normal_(weight, std=0.02),
        lambda weight: nn.init.trunc_normal_(weight, mean=3.0, std=1.0, a=-1, b=1),
        lambda weight: nn.init.sparse_(weight, 0.3),
        lambda weight: nn.init.normal_(weight, generator=torch.Generator().manual_seed(3)),
    ):
        assert_as_eager(filled(initialise, 12, 10))
    assert_as_eager(filled(nn.init.dirac_, 4, 4, 3))


def test_a_separate_generator_continues_as_with_eager_initialisation():
    def draws(**context):
        generator = torch.Generator().manual_seed(3)
        with delay_param_initialization(**context):
            first = filled(lambda weight: weight.data.normal_(generator=generator), 20)()
            second = filled(lambda weight: weight.data.uniform_(generator=generator), 20)()
        materialize(second)
        materialize(first)
        return first.weight.data, second.weight.data, torch.rand(2, generator=generator)

    for one, other in zip(draws(enabled=True), draws(enabled=False), strict=True):
        assert torch.equal(one, other)


def test_parametrizations_and_their_derived_values_are_replayed():
    assert_as_eager(lambda: nn.utils.parametrizations.weight_norm(nn.Linear(5, 7)))
    assert_as_eager(lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(5, 7)))


def test_copies_types_and_branches_on_values_are_replayed():
    def make():
        first = nn.Linear(6, 6)
        second = copy.deepcopy(first)
        third = nn.Linear(6, 6).to(torch.bfloat16)
        if first.weight.abs().max() > 0.3 and first.weight.sum().item() != 0:
            nn.init.constant_(second.bias, first.weight.detach().numpy()[0, 0].item())
        largest = nn.Parameter(torch.empty(int((first.weight > 0).sum()), 2).fill_(1))
        return nn.ModuleList([first, second, third, nn.ParameterList([largest])])

    assert_as_eager(make)


def test_a_parameter_with_two_names_before_it_has_a_module():
    class Shares(nn.Module):
        def __init__(self):
            super().__init__()
            values = torch.empty(4, 4)
            weight = nn.Parameter(values)
            self.left, self.right = weight, weight
            self.upper = nn.Parameter(values[:2])
            nn.init.normal_(weight)
            values[3].fill_(9.0)

    _, model = assert_as_eager(Shares)
    assert model.left is model.right
    assert model.upper.data_ptr() == model.left.data_ptr()


def test_chosen_modules_are_materialised_and_all_others_stay_without_memory():
    torch.manual_seed(SEED)
    eager = Custom()
    model, _ = made(Custom)
    chosen = {model.blocks[1], model.head}
    names = materialize(model, only=lambda module: module in chosen)
    assert names == ["blocks.1.weight", "blocks.1.bias", "head.weight"]
    assert torch.equal(model.blocks[1].weight, eager.blocks[1].weight)
    assert model.blocks[0].weight.is_meta
    assert is_delayed(model.blocks[0].weight)
    assert not is_delayed(model.blocks[1].weight)
    assert torch.equal(model.embedding.weight, eager.embedding.weight)
    assert materialize(model, only=lambda module: module in chosen) == []
    materialize(model)
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), eager.parameters(), strict=True))


def test_parameters_stay_the_objects_that_an_optimizer_holds():
    model, _ = made(lambda: nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model.weight.is_sharded = True
    materialize(model)
    before = model.weight.detach().clone()
    model(torch.ones(4)).sum().backward()
    optimizer.step()
    assert model.weight.is_sharded
    assert torch.equal(model.weight, before - 1)


def test_the_innermost_context_decides_whether_parameters_are_delayed():
    def make(inner):
        first = nn.Linear(3, 3)
        with delay_param_initialization(enabled=False):
            second = nn.Linear(3, 3)
            with delay_param_initialization(enabled=inner):
                third = nn.Linear(3, 3)
            nn.init.ones_(first.bias)
        return nn.ModuleList([first, second, third])

    torch.manual_seed(SEED)
    eager = make(False)
    model, _ = made(lambda: make(True))
    assert [part.weight.is_meta for part in model] == [True, False, True]
    materialize(model)
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), eager.parameters(), strict=True))
    model, _ = made(lambda: make(True), enabled=False)
    assert [part.weight.is_meta for part in model] == [False, False, True]
    materialize(model)


def test_external_values_are_copied_at_once():
    values = torch.rand(3, 3)

    class Takes(nn.Module):
        def __init__(self):
            super().__init__()
            self.given = nn.Parameter(values.clone())
            self.same = nn.Parameter(values)
            self.listed = nn.Parameter(torch.tensor([1.0, 2.0]))

    assert_as_eager(Takes, num_delayed=1)
    model, _ = made(Takes)
    assert model.same.data_ptr() == values.data_ptr()
    values.zero_()
    error = raised(materialize, model)
    assert isinstance(error, DelayedInitializationError)
    assert "shape (3, 3) that was read while the model was made has been changed since" in str(error)
    delayed._models.clear()


def test_an_operation_that_cannot_be_delayed_is_refused():
    class Fills(nn.Module):
        def __init__(self, given):
            super().__init__()
            self.weight = nn.Parameter(torch.rand(3))
            given.copy_(self.weight)

    error = raised(made, lambda: Fills(torch.zeros(3)))
    assert isinstance(error, DelayedInitializationError)
    assert "aten.copy_.default writes a value computed from a parameter into a tensor of shape (3,)" in str(error)
    assert nn.Parameter(torch.ones(2)).device.type == "cpu"
    assert not nn.Linear(2, 2).weight.is_meta


def test_changes_after_the_context_are_refused():
    model, _ = made(lambda: nn.Linear(3, 3))
    nn.init.ones_(model.bias)
    error = raised(materialize, model)
    assert "bias was changed in place while it had no memory" in str(error)
    for change in (nn.Module.half, copy.deepcopy):
        model, _ = made(lambda: nn.Linear(3, 3))
        assert "weight has no memory, and nothing is known of how it is initialised" in str(
            raised(materialize, change(model))
        )
    with torch.device("meta"):
        assert "nothing is known" in str(raised(materialize, nn.Linear(2, 2)))
    delayed._models.clear()


def test_a_dropped_model_and_a_context_without_a_model_leave_no_record():
    with delay_param_initialization():
        torch.zeros(3)
    assert delayed._models == []
    model, _ = made(lambda: nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 3)))
    other, _ = made(lambda: nn.Linear(2, 2))
    assert len(delayed._models) == 2
    materialize(model[0])
    assert len(delayed._models) == 2
    del model
    gc.collect()
    assert len(delayed._models) == 1
    assert sorted(materialize(other)) == ["bias", "weight"]
    assert delayed._models == []


def test_two_threads_record_separately_and_a_third_is_not_affected():
    entered, found = threading.Barrier(3), {}

    def work(name, enabled):
        with delay_param_initialization(enabled=enabled):
            entered.wait(10)
            found[name] = nn.Linear(4, 4)
            entered.wait(10)

    threads = [threading.Thread(target=work, args=(name, name < 2)) for name in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert [found[name].weight.is_meta for name in range(3)] == [True, True, False]
    materialize(found[0])
    materialize(found[1])
    assert nn.Parameter.__new__.__name__ == "__new__"


def test_a_model_uses_memory_only_when_materialised_and_only_for_chosen_modules():
    side, num = 1 << 11, 16  # 16 MiB a layer

    def resident(word):
        status = Path("/proc/self/status").read_text(encoding="ascii")
        return int(re.search(rf"{word}:\s+(\d+) kB", status)[1]) * 1024

    materialize(
        made(lambda: nn.Linear(side, side))[0]
    )  # code that is loaded on the way is counted before the measurement
    gc.collect()  # otherwise garbage of other tests could be freed during the measurement
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # reset the peak
    before = resident("VmRSS")
    model, _ = made(lambda: nn.Sequential(*[nn.Linear(side, side, bias=False) for _ in range(num)]))
    layer_bytes = side * side * 4
    assert resident("VmHWM") - before < 3 * layer_bytes
    materialize(model, only=lambda module: module in (model[1], model[2]))
    assert resident("VmHWM") - before < 6 * layer_bytes
    materialize(model)
    assert sum(weight.untyped_storage().nbytes() for weight in model.parameters()) == num * layer_bytes
    assert not any(weight.is_meta for weight in model.parameters())
    assert resident("VmHWM") - before > num // 2 * layer_bytes  # pages from the allocator's cache are not counted again
