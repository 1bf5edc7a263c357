"""A Llama of transformers for whose layers the program registers distributed versions, on two tensor ranks.

Run by test_tensor_llama in an environment with transformers. Losses and final weights are compared with those of the
unsharded model, trained on the batches of both ranks.
"""

import contextlib
import itertools
import logging

import smdistributed.modelparallel.torch as smp
import torch
import torch.distributed as dist
import transformers
from smp_core_program import start
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama import modeling_llama
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm, apply_rotary_pos_emb

from clary.train.parallel.tensor.registry import unregister

WORDS, N, S, NUM_STEPS = 50, 4, 8, 4
TRANSFORMERS_MAJOR = int(transformers.__version__.partition(".")[0])
CONFIG = LlamaConfig(
    vocab_size=WORDS,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=16,
    use_cache=False,
)


class DistributedLlamaAttention(smp.nn.DistributedModule):
    """The program's own attention, whose matrices are sharded."""

    def __init__(self, config):
        super().__init__()
        self.head_dim = config.hidden_size // config.num_attention_heads
        self.num_sharing = config.num_attention_heads // config.num_key_value_heads
        shared = config.num_key_value_heads * self.head_dim
        self.q_proj = smp.nn.DistributedLinear(config.hidden_size, config.hidden_size, bias=False)
        self.k_proj = smp.nn.DistributedLinear(config.hidden_size, shared, bias=False)
        self.v_proj = smp.nn.DistributedLinear(config.hidden_size, shared, bias=False)
        self.o_proj = smp.nn.DistributedLinear(config.hidden_size, config.hidden_size, bias=False)

    def forward(self, hidden, rotation):
        query, key, value = (
            proj(hidden).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, key = apply_rotary_pos_emb(query, key, *rotation)
        key, value = (part.repeat_interleave(self.num_sharing, 1) for part in (key, value))
        heads = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.o_proj(heads.transpose(1, 2).flatten(2))


class DistributedLlamaMLP(smp.nn.DistributedModule):
    """The program's own MLP, whose matrices are sharded."""

    def __init__(self, config):
        super().__init__()
        self.gate_proj = smp.nn.DistributedLinear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = smp.nn.DistributedLinear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = smp.nn.DistributedLinear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, hidden):
        return self.down_proj(nn.functional.silu(self.gate_proj(hidden)) * self.up_proj(hidden))


class DistributedLlamaLayer(smp.nn.DistributedModule):
    """The program's own layer, with transformers' names and unsharded norms."""

    def __init__(self, config):
        super().__init__()
        self.self_attn, self.mlp = DistributedLlamaAttention(config), DistributedLlamaMLP(config)
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, inputs):
        hidden, rotation = inputs
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), rotation)
        return hidden + self.mlp(self.post_attention_layernorm(hidden)), rotation


def init_hook(config, layer_idx):
    return (config,), {}


def forward_hook(
    hidden_states,
    attention_mask=None,
    position_ids=None,
    cache=None,
    use_cache=False,
    position_embeddings=None,
    **more,
):
    return ((hidden_states, position_embeddings),), {}


def return_hook(output):
    """Return hidden states in the form of a transformers layer: in 4.46 as a tuple."""
    return output[0] if TRANSFORMERS_MAJOR >= 5 else (output[0],)


OWN = (DistributedLlamaLayer, init_hook, forward_hook, return_hook)


def of_smp():
    hooks = smp.nn.huggingface.llama.get_hf_llama_transformer_layer_hooks()
    return (smp.nn.DistributedTransformerLayer, *hooks)


@contextlib.contextmanager
def registered(*registration):
    smp.tp_register_with_module(LlamaDecoderLayer, *registration)
    try:
        yield
    finally:
        unregister(LlamaDecoderLayer)


@smp.step
def train_step(model, ids):
    loss = model(input_ids=ids, labels=ids).loss
    model.backward(loss)
    return loss


def plain_llama():
    torch.manual_seed(5)
    model = LlamaForCausalLM(CONFIG)
    with torch.no_grad():
        for parameter in model.parameters():  # norms are initialised with ones, which would hide errors
            parameter += 0.1 * torch.randn_like(parameter)
    return model


def batch_of(step):
    return torch.randint(WORDS, (N, S), generator=torch.Generator().manual_seed(step))


def optimizer_of(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-3)


def alone():
    """Return the losses and the state of an unsharded model."""
    model = plain_llama()
    optimizer, losses = optimizer_of(model), []
    for step in range(NUM_STEPS):
        optimizer.zero_grad()
        loss = model(input_ids=batch_of(step), labels=batch_of(step)).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model.state_dict()


def assert_trains_as_alone(registration, to_ours, to_theirs, layer_class, **keys):
    start(ddp=True, tensor_parallel_degree=2, **keys)
    plain = plain_llama().state_dict()
    with registered(*registration):
        with smp.model_creation(tensor_parallelism=True):
            inner = LlamaForCausalLM(CONFIG)
        model = smp.DistributedModel(inner)
    assert all(type(layer) is layer_class for layer in inner.model.layers)
    optimizer = smp.DistributedOptimizer(optimizer_of(model))
    model.load_state_dict(to_ours(plain))
    own = slice(None) if keys["prescaled_batch"] else slice(smp.tp_rank() * N // 2, (smp.tp_rank() + 1) * N // 2)
    losses = []
    for step in range(NUM_STEPS):
        optimizer.zero_grad()
        loss = train_step(model, batch_of(step)[own]).reduce_mean().detach()
        optimizer.step()
        dist.all_reduce(loss)
        losses.append(loss.item() / 2)
    expected, state = alone()
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected), rtol=1e-4, atol=1e-4)
    assert losses[-1] < losses[0]
    for parameter in model.parameters():  # replicated parameters are equal on both ranks
        if not model.is_distributed_parameter(parameter):
            other = parameter.detach().clone()
            dist.broadcast(other, 0)
            assert torch.equal(other, parameter)
    trained = to_theirs(model.state_dict())
    assert set(trained) == set(state)
    for name, value in state.items():
        torch.testing.assert_close(trained[name], value, rtol=1e-3, atol=1e-3, msg=lambda text, name=name: name + text)


def layouts():
    for optimize, prescaled in itertools.product(("memory", "speed"), (True, False)):
        yield {"optimize": optimize, "prescaled_batch": prescaled}


def as_it_is(state):
    return state


def test_a_registered_class_of_the_program_trains_like_the_plain_model(rank, size):
    for keys in layouts():
        assert_trains_as_alone(OWN, as_it_is, as_it_is, DistributedLlamaLayer, **keys)


def test_differing_parameters_of_a_registered_class_are_reported(rank, size):
    """With a prescaled batch they may be slices made by the program."""
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("clary.smp").addHandler(handler)
    for prescaled, told in ((True, 1), (False, 0)):
        del lines[:]
        start(ddp=True, tensor_parallel_degree=2, prescaled_batch=prescaled)
        with registered(*OWN):
            with smp.model_creation(tensor_parallelism=True):
                inner = LlamaForCausalLM(CONFIG)
            model = smp.DistributedModel(inner)
        with torch.no_grad():
            inner.model.layers[1].input_layernorm.weight.add_(rank)
        for _ in range(2):
            train_step(model, batch_of(0))
        found = [line for line in lines if "layers.1.input_layernorm.weight of tensor rank 1" in line]
        assert len(found) == (told if rank == 0 else 0), lines


def test_the_layer_of_smp_nn_replaces_a_layer_by_its_hooks(rank, size):
    names = smp.nn.huggingface.llama
    to_theirs = names.translate_state_dict_to_hf_llama
    to_ours = names.translate_hf_state_dict_to_smdistributed_llama
    for keys in layouts():
        assert_trains_as_alone(of_smp(), to_ours, to_theirs, smp.nn.DistributedTransformerLayer, **keys)


def test_a_class_decorated_with_tp_register_replaces_a_layer(rank, size):
    """The program's class is decorated with `smp.tp_register` and replaces that of transformers."""

    @smp.tp_register(*OWN)
    class Layer(LlamaDecoderLayer):
        def __init__(self, config, layer_idx):
            super().__init__(config, layer_idx)

    own = modeling_llama.LlamaDecoderLayer
    modeling_llama.LlamaDecoderLayer = Layer
    try:
        start(ddp=True, tensor_parallel_degree=2, prescaled_batch=True)
        with smp.tensor_parallelism():
            model = smp.DistributedModel(LlamaForCausalLM(CONFIG))
    finally:
        modeling_llama.LlamaDecoderLayer = own
        unregister(Layer)
    model.load_state_dict(plain_llama().state_dict())
    loss = train_step(model, batch_of(0)).reduce_mean().item()
    assert abs(loss - alone()[0][0]) < 1e-4
    assert sum(type(one) is DistributedLlamaLayer for one in model.modules()) == CONFIG.num_hidden_layers
