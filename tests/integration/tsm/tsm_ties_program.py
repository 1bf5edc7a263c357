"""Models with tied weights whose parameters are on the meta device on some or all ranks, as `init_empty_weights` of
accelerate makes them: that function registers each parameter as a new object, which breaks ties."""

import contextlib
import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullStateDictConfig, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from tsm_tensor_models import LlamaModel, Output, llama_config

from clary.train.parallel.fsdp.delayed import DelayedParamIniter
from clary.train.parallel.fsdp.modules import empty_module_params
from clary.train.parallel.fsdp.session import init
from clary.train.parallel.fsdp.state import state
from clary.train.parallel.fsdp.training import transform


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.config = llama_config(tie_word_embeddings=True)
        self.model = LlamaModel(self.config)
        self.lm_head = nn.Linear(self.model.embed_tokens.embedding_dim, self.config.vocab_size, bias=False)
        self.tie_weights()

    def tie_weights(self):
        self.lm_head.weight = self.model.embed_tokens.weight

    def _init_weights(self, module):
        for parameter in module._parameters.values():
            if parameter is not None:
                nn.init.normal_(parameter, std=0.2)

    def forward(self, input_ids):
        return Output(self.lm_head(self.model(input_ids)), None)


class TiedInConstructor(Tied):
    """A model without a method that ties its weights."""

    tie_weights = None

    def __init__(self):
        nn.Module.__init__(self)
        self.config = llama_config(tie_word_embeddings=True)
        self.model = LlamaModel(self.config)
        self.lm_head = nn.Linear(self.model.embed_tokens.embedding_dim, self.config.vocab_size, bias=False)
        self.lm_head.weight = self.model.embed_tokens.weight


@contextlib.contextmanager
def init_empty_weights(enabled=True):
    own = nn.Module.register_parameter

    def register(module, name, parameter):
        own(module, name, parameter)
        if parameter is not None:
            module._parameters[name] = nn.Parameter(parameter.to("meta"), parameter.requires_grad)

    if enabled:
        nn.Module.register_parameter = register
    try:
        yield
    finally:
        nn.Module.register_parameter = own


def begun(tensor):
    state.reset()
    init({"tensor_parallel_degree": tensor})


def wrapped(model, **options):
    kind = type(model.model.layers[0])
    options = {"use_orig_params": True, "device_id": torch.device("cpu"), **options}
    return FSDP(model, auto_wrap_policy=ModuleWrapPolicy({kind}), **options)


def full_state(model):
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig()):
        return model.state_dict()


def fill(module):
    """Initialise a module as the developer guide's example does: in new memory."""
    empty_module_params(module, device="cpu")
    for parameter in module._parameters.values():
        if parameter is not None:
            parameter.data.normal_(std=0.2)


def assert_state(model, expected):
    found = full_state(model)
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


def assert_tied_training(model, rank):
    """Check that a step of training leaves embedding and head equal, and that both had a gradient."""
    before = full_state(model)
    assert torch.equal(before["lm_head.weight"], before["model.embed_tokens.weight"])
    assert all(torch.isfinite(one).all() for one in before.values())
    tokens = torch.arange(4, 12).reshape(2, 4) + rank // state.tp_size
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    logits = model(input_ids=tokens).logits
    nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
    optimizer.step()
    after = full_state(model)
    assert torch.equal(after["lm_head.weight"], after["model.embed_tokens.weight"])
    assert not torch.equal(after["lm_head.weight"], before["lm_head.weight"])


def test_training_from_scratch_keeps_ties(rank, size):
    for tensor in (1, 2):
        for method in (None, fill):
            for empty in (init_empty_weights, lambda: torch.device("meta")):
                begun(tensor)
                with empty():
                    model = Tied()
                model = transform(model)
                initer = DelayedParamIniter(model, init_method_using_config=method)
                torch.manual_seed(3)
                with initer.validate_params_and_buffers_inited():
                    model = wrapped(
                        model,
                        param_init_fn=initer.get_param_init_fn(),
                        post_param_init_fn=initer.get_post_param_init_fn(),
                    )
                assert_tied_training(model, rank)
    state.reset()


def test_a_unit_is_tied_before_its_parameters_are_sent(rank, size):
    """The script itself ties weights: ranks without values have one parameter more than rank 0 until then."""
    begun(1)
    torch.manual_seed(5)
    with init_empty_weights(enabled=rank > 0):
        model = Tied()
    expected = [copy.deepcopy(model.state_dict()) if rank == 0 else None]
    dist.broadcast_object_list(expected)

    def tie(unit):
        if isinstance(unit, Tied):
            unit.tie_weights()

    model = wrapped(
        model,
        sync_module_states=True,
        param_init_fn=lambda part: part.to_empty(device="cpu", recurse=False),
        post_param_init_fn=tie,
    )
    assert_state(model, expected[0])
    assert_tied_training(model, rank)
    state.reset()


def test_a_tie_between_two_units_is_refused(rank, size):
    begun(1)
    with init_empty_weights():
        model = Tied()
    initer = DelayedParamIniter(model, init_method_using_config=fill)
    told = None
    try:
        FSDP(
            model,
            auto_wrap_policy=ModuleWrapPolicy({nn.Embedding}),
            device_id=torch.device("cpu"),
            param_init_fn=initer.get_param_init_fn(),
            post_param_init_fn=initer.get_post_param_init_fn(),
        )
    except ValueError as error:
        told = str(error)
    assert told is not None
    assert "model.embed_tokens.weight and lm_head.weight are tied and lie in different units" in told, told
    state.reset()


def check_fine_tuning(rank, kind, tensor):
    begun(tensor)
    torch.manual_seed(5)
    with init_empty_weights(enabled=rank > 0):
        model = kind()
    expected = [copy.deepcopy(model.state_dict()) if rank == 0 else None]
    dist.broadcast_object_list(expected)
    model = transform(model, load_state_dict_from_rank0=True)
    model = wrapped(
        model, sync_module_states=True, param_init_fn=lambda part: part.to_empty(device="cpu", recurse=False)
    )
    assert_state(model, expected[0])
    assert_tied_training(model, rank)
    state.reset()


def test_rank_0_gives_tied_weights_to_ranks_without_values(rank, size):
    for kind in (Tied, TiedInConstructor):
        for tensor in (1, 2):
            check_fine_tuning(rank, kind, tensor)


def test_rank_0_gives_tied_weights_through_delayed_parameters(rank, size):
    for tensor in (1, 2):
        begun(tensor)
        torch.manual_seed(5)
        with init_empty_weights(enabled=rank > 0):
            model = Tied()
        expected = [copy.deepcopy(model.state_dict()) if rank == 0 else None]
        dist.broadcast_object_list(expected)
        model = transform(model, load_state_dict_from_rank0=True)
        initer = DelayedParamIniter(model, init_method_using_config=fill)
        model = wrapped(
            model,
            sync_module_states=True,
            param_init_fn=initer.get_param_init_fn(),
            post_param_init_fn=initer.get_post_param_init_fn(),
        )
        assert_state(model, expected[0])
        assert_tied_training(model, rank)
    state.reset()


def test_rank_0_decides_whether_weights_are_tied(rank, size):
    begun(2)
    torch.manual_seed(5)
    with init_empty_weights(enabled=rank > 0):
        model = Tied()
    if rank == 0:
        model.lm_head.weight = nn.Parameter(torch.ones_like(model.lm_head.weight))
    else:
        model.tie_weights()
    model = transform(model, load_state_dict_from_rank0=True)
    model = wrapped(
        model,
        sync_module_states=True,
        param_init_fn=lambda module: module.to_empty(device="cpu", recurse=False),
    )
    found = full_state(model)
    assert found["lm_head.weight"].eq(1).all()
    assert not torch.equal(found["lm_head.weight"], found["model.embed_tokens.weight"])
    state.reset()
