"""Delayed initialisation of models with tied weights, in one process; functions that `torch_programs` runs."""

import contextlib

import torch
from torch import nn

from clary.train.parallel.fsdp.delayed import DelayedParamIniter, NotInitialisedError
from clary.train.parallel.fsdp.modules import empty_module_params, move_buffers_to_device
from clary.train.parallel.fsdp.ties import adopt_ties, keeping_ties, tie_weights, ties_of

_TOKENS, _WIDTH = 6, 4


@contextlib.contextmanager
def init_empty_weights():
    """Move each registered parameter to the meta device, as a new object, as accelerate's function does."""
    own = nn.Module.register_parameter

    def register(module, name, parameter):
        own(module, name, parameter)
        if parameter is not None:
            module._parameters[name] = nn.Parameter(parameter.to("meta"), parameter.requires_grad)

    nn.Module.register_parameter = register
    try:
        yield
    finally:
        nn.Module.register_parameter = own


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(_TOKENS, _WIDTH)
        self.norm = nn.LayerNorm(_WIDTH)
        self.lm_head = nn.Linear(_WIDTH, _TOKENS, bias=False)
        self.tie_weights()

    def tie_weights(self):
        self.lm_head.weight = self.wte.weight


class Wrapper(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = Tied()


class TiedWithBias(Tied):
    def __init__(self):
        super().__init__()
        self.lm_head.bias = nn.Parameter(torch.zeros(_TOKENS))


class WithoutTieWeights(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(2, 2, bias=False) for _ in range(3))
        self.third.weight = self.first.weight


def documented(module):
    """Initialise a module as the developer guide's example does."""
    empty_module_params(module, device="cpu")
    if isinstance(module, (nn.Linear, nn.Embedding)):
        module.weight.data.normal_(mean=0.0, std=0.5)
        if getattr(module, "bias", None) is not None:
            module.bias.data.zero_()
    elif isinstance(module, nn.LayerNorm):
        module.weight.data.fill_(1.0)
        module.bias.data.zero_()
    return move_buffers_to_device(module, device="cpu")


def initialise(model, **options):
    """Call the functions of a `DelayedParamIniter` as FSDP calls them for one unit."""
    initer = DelayedParamIniter(model, **options)
    with initer.validate_params_and_buffers_inited():
        for module in model.modules():
            initer.get_param_init_fn()(module)
        initer.get_post_param_init_fn()(model)
    return model


def refused(call, kind, words):
    told = None
    try:
        call()
    except kind as error:
        told = str(error)
    assert told is not None, f"nothing was raised; expected {words!r}"
    assert words in told, told


def assert_tied(model):
    assert model.lm_head.weight is model.wte.weight
    assert torch.isfinite(model.wte.weight).all()
    assert model.wte.weight.std() > 0
    assert len(list(model.parameters())) == len({id(one) for one in model.parameters()})


def test_ties_that_init_empty_weights_breaks_are_made_again():
    with init_empty_weights():
        model = Tied()
    assert model.lm_head.weight is not model.wte.weight
    assert_tied(initialise(model))
    with init_empty_weights():
        model = Tied()
    assert_tied(initialise(model, init_method_using_config=documented))


def test_a_model_inside_another_is_tied_too():
    with init_empty_weights():
        outer = Wrapper()
    assert_tied(initialise(outer).model)


def test_a_tie_that_is_broken_after_the_constructor_is_made_again_before_a_unit_is_cut():
    with init_empty_weights():
        model = Tied()
    initer = DelayedParamIniter(model)
    for module in model.modules():
        module.to_empty(device="cpu", recurse=False)
    assert model.lm_head.weight is not model.wte.weight
    initer.get_post_param_init_fn()(model)
    assert model.lm_head.weight is model.wte.weight


def test_the_documented_function_keeps_ties_of_the_meta_device():
    for kind in (Tied, TiedWithBias):
        with torch.device("meta"):
            model = kind()
        assert_tied(initialise(model, init_method_using_config=documented))
    assert model.lm_head.bias.eq(0).all()


def test_a_head_whose_values_come_from_its_tie_alone_is_initialised():
    def only_embeddings(module):
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight)
        elif isinstance(module, nn.LayerNorm):
            module.reset_parameters()

    class TiedLater(Tied):
        """A model whose `tie_weights` has no effect until it has values."""

        def tie_weights(self):
            if not self.wte.weight.is_meta:
                super().tie_weights()

    with init_empty_weights():
        model = TiedLater()
    assert_tied(initialise(model, init_method_using_config=only_embeddings))


def test_parameters_that_a_function_empties_and_leaves_are_named():
    def forgetful(module):
        return empty_module_params(module, device="cpu")

    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
    refused(lambda: initialise(model, init_method_using_config=forgetful), AssertionError, "0.bias, 0.weight")


def test_missing_values_raise_an_assertion_error_and_a_runtime_error():
    for kind in (AssertionError, RuntimeError, NotInitialisedError):
        with torch.device("meta"):
            model = nn.Linear(2, 2)
        with_nothing = DelayedParamIniter(model).validate_params_and_buffers_inited()

        def leave_out(context=with_nothing):
            with context:
                pass

        refused(leave_out, kind, "bias, weight has no values")
    with DelayedParamIniter(model).validate_params_and_buffers_inited(enabled=False):
        pass


def test_parameters_are_counted_in_a_module_or_a_list():
    model = Tied()
    initer = DelayedParamIniter(model)
    vocabulary, norm = _TOKENS * _WIDTH, 2 * _WIDTH
    assert initer.count_num_params() == vocabulary + norm
    assert initer.count_num_params(model) == vocabulary + norm
    assert initer.count_num_params(model.norm) == norm
    assert initer.count_num_params(model.norm, model.wte.weight, model.lm_head.weight) == norm + vocabulary
    assert initer.count_num_params(model.norm, *model.norm.parameters()) == norm


def test_helpers_return_the_module_and_take_its_own_device():
    model = nn.BatchNorm1d(2)
    assert empty_module_params(model) is model
    assert model.weight.device.type == "cpu"
    assert model.weight.isnan().all()
    assert model.running_mean.eq(0).all()
    assert move_buffers_to_device(model, "meta") is model
    assert model.running_mean.is_meta
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(2, 2))
    empty_module_params(model, None, True)
    assert not any(one.is_meta for one in model.parameters())
    with torch.device("meta"):
        model = Tied()
    empty_module_params(model, device="cpu", recurse=True)
    assert model.lm_head.weight is model.wte.weight


def test_ties_are_adopted_from_another_model():
    expected = ties_of(WithoutTieWeights())
    assert expected == [["first.weight", "third.weight"]]
    with init_empty_weights():
        model = WithoutTieWeights()
    tie_weights(model)
    assert ties_of(model) == []
    adopt_ties(model, expected)
    assert ties_of(model) == expected
    kept = list(model.parameters())
    adopt_ties(model, expected)
    assert all(one is other for one, other in zip(kept, model.parameters(), strict=True))
    adopt_ties(model, [])
    assert ties_of(model) == []
    assert model.third.weight.is_meta
    assert model.first.weight is kept[0]


def test_ties_are_kept_while_a_model_gets_memory():
    with torch.device("meta"):
        model = WithoutTieWeights()
    with keeping_ties(model):
        for module in model.modules():
            module.to_empty(device="cpu", recurse=False)
    assert ties_of(model) == [["first.weight", "third.weight"]]
    assert not any(one.is_meta for one in model.parameters())
