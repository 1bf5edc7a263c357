"""GPT-NeoX with both APIs of tensor-parallel layers and the same weights: `smp.nn` (replaced), `torch.sagemaker` (cut).

Functions `test_...(rank, size)`; see `torch_ranks`.
"""

import copy
from contextlib import contextmanager

import torch
import transformers
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM
from whole_states import gather_tensors

from clary.train.parallel import runtime
from clary.train.parallel.configuration import read_configuration
from clary.train.parallel.fsdp.cuts import cuts_by_name
from clary.train.parallel.fsdp.layers.cutting import cut_layers
from clary.train.parallel.layout.mesh import Along
from clary.train.parallel.tensor.collectives import TensorGroup, gather_whole
from clary.train.parallel.tensor.huggingface.reader import translators
from clary.train.parallel.tensor.registry import set_tensor_parallelism
from clary.train.parallel.tensor.replacement import replace_modules
from clary.train.parallel.tensor.slices import cut_state_dict

TO_THEIRS, TO_OURS = translators("gpt_neox")
ROTATION = (
    {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}}
    if int(transformers.__version__.partition(".")[0]) >= 5
    else {"rotary_pct": 0.5, "rotary_emb_base": 10000}
)
CONFIG = GPTNeoXConfig(
    vocab_size=48,
    max_position_embeddings=16,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    use_cache=False,
    **ROTATION,
)
IDS = torch.randint(48, (3, 6), generator=torch.Generator().manual_seed(5))


@contextmanager
def parallel(degree, optimize="speed"):
    """Yield the tensor group of this rank."""
    keys = {"tensor_parallel_degree": degree, "ddp": True, "optimize": optimize, "prescaled_batch": True}
    runtime.initialize(read_configuration(keys))
    try:
        groups = runtime.current().groups
        yield TensorGroup(groups.process_group(Along.TP), groups.group_rank(Along.TP), groups.size(Along.TP))
    finally:
        runtime.reset()


def plain_model():
    torch.manual_seed(1)
    model = GPTNeoXForCausalLM(copy.deepcopy(CONFIG))
    with torch.no_grad():
        for parameter in model.parameters():  # initial zeros and ones would hide errors
            parameter += 0.1 * torch.randn_like(parameter)
    return model


def replaced_model(state):
    model = GPTNeoXForCausalLM(copy.deepcopy(CONFIG))
    set_tensor_parallelism(model)
    model = replace_modules(model).root
    model.load_state_dict(cut_state_dict(model, TO_OURS(state)))
    return model


def cut_model(state, group):
    model = GPTNeoXForCausalLM(copy.deepcopy(CONFIG))
    model.load_state_dict(state)
    cut_layers(model, group, from_rank0=False, is_first_group=True)
    return model


def of_replaced(model, values, group):
    """Return slices named as in Clary's layers as whole tensors named as in the plain model."""
    wholes = gather_tensors(model, values, group)
    return TO_THEIRS(wholes, num_attention_heads=CONFIG.num_attention_heads)


def of_cut(model, values, group):
    cuts, wholes = cuts_by_name(model), {}
    for key, value in values.items():
        wholes[key] = value.detach()
        if key in cuts:
            wholes[key] = cuts[key].join(list(gather_whole(value.detach().unsqueeze(0), group)))
    return wholes


def gradients(model):
    return {name: one.grad for name, one in model.named_parameters() if one.grad is not None}


def near(found, wanted):
    assert found.keys() == wanted.keys(), found.keys() ^ wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6, msg=lambda text, at=name: f"{at}: {text}")


def compare(degree, optimize):
    with parallel(degree, optimize) as group:
        plain = plain_model()
        state = {name: one.detach() for name, one in plain.named_parameters()}
        replaced, cut = replaced_model(state), cut_model(plain.state_dict(), group)
        outputs = [model(input_ids=IDS, labels=IDS) for model in (plain, replaced, cut)]
        for output in outputs:
            output.loss.backward()
        first, *others = outputs
        for output in others:
            torch.testing.assert_close(output.loss, first.loss, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(output.logits, first.logits, rtol=1e-4, atol=1e-5)
        near(of_replaced(replaced, gradients(replaced), group), gradients(plain))
        near(of_cut(cut, gradients(cut), group), gradients(plain))


def test_both_apis_compute_the_same_as_the_plain_model(rank, size):
    for optimize in ("speed", "memory"):
        compare(size, optimize)


def test_both_apis_compute_the_same_as_the_plain_model_on_one_rank(rank, size):
    compare(1, "speed")


def test_a_state_can_be_loaded_at_other_degrees_and_by_the_other_api(rank, size):
    plain = plain_model()
    state = {name: one.detach() for name, one in plain.named_parameters()}
    whole = state
    for degree in (size, 1, size):
        with parallel(degree) as group:
            replaced = replaced_model(whole)
            whole = of_replaced(replaced, dict(replaced.named_parameters()), group)
            assert whole.keys() == state.keys()
            cut = cut_model({**plain.state_dict(), **whole}, group)
            assert bool(cuts_by_name(cut)), "nothing was cut"
            whole = of_cut(cut, dict(cut.named_parameters()), group)
            assert all(torch.equal(whole[name], value) for name, value in state.items())


def test_slices_of_both_apis_are_equal(rank, size):
    """Each rank has the same attention heads and inner channels of the MLP with either API."""
    with parallel(size) as group:
        plain = plain_model()
        state = {name: one.detach() for name, one in plain.named_parameters()}
        replaced, cut = replaced_model(state), cut_model(plain.state_dict(), group)
        ours, theirs = replaced.transformer.seq_layers[0], cut.gpt_neox.layers[0]
        assert torch.equal(ours.output.dense1.weight, theirs.mlp.dense_h_to_4h.weight)
        assert torch.equal(ours.output.dense2.weight, theirs.mlp.dense_4h_to_h.weight)
        assert torch.equal(ours.attention.dense.weight, theirs.attention.dense.weight)
        heads = [
            part.weight.unflatten(0, (CONFIG.num_attention_heads // size, -1))
            for part in (ours.attention.query, ours.attention.key, ours.attention.value)
        ]
        assert torch.equal(torch.stack(heads, 1).flatten(0, 2), theirs.attention.query_key_value.weight)
