"""`LlamaFlashAttention` in place of the attention of transformers' Llama: functions `test_...()` that `torch_programs`
runs with several versions of transformers."""

import itertools

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from clary.train.parallel.fsdp.layers.llama_attention import LlamaFlashAttention

torch.set_num_threads(1)
SIZES = {
    "vocab_size": 60,
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
}
IDS = torch.arange(14).reshape(2, 7)


def replaced(model):
    """Put LlamaFlashAttention into each layer, as the developer guide does."""
    for place, layer in enumerate(model.model.layers):
        attention = LlamaFlashAttention(model.config, place)
        attention.load_state_dict(layer.self_attn.state_dict(), strict=False)
        layer.self_attn = attention
    return model


def pair(implementation):
    torch.manual_seed(0)
    model = LlamaForCausalLM._from_config(LlamaConfig(**SIZES), attn_implementation=implementation).eval()
    torch.manual_seed(0)
    other = LlamaForCausalLM._from_config(LlamaConfig(**SIZES), attn_implementation=implementation).eval()
    other.load_state_dict(model.state_dict())
    return model, replaced(other)


def masks():
    padded = torch.ones_like(IDS)
    padded[1, -2:] = 0
    return None, torch.ones_like(IDS), padded


def test_models_give_the_logits_and_gradients_of_their_own_attention():
    for implementation, mask in itertools.product(("eager", "sdpa"), masks()):
        model, other = pair(implementation)
        found = []
        for one in (model, other):
            logits = one(input_ids=IDS, attention_mask=mask, use_cache=False).logits
            seen = logits if mask is None else logits[mask.bool()]
            seen.square().mean().backward()
            found.append((seen.detach(), {name: value.grad for name, value in one.named_parameters()}))
        torch.testing.assert_close(found[0][0], found[1][0], atol=1e-5, rtol=1e-4)
        assert found[0][1].keys() == found[1][1].keys()
        for name, gradient in found[0][1].items():
            torch.testing.assert_close(gradient, found[1][1][name], atol=1e-5, rtol=1e-3)


def test_a_layer_gives_as_many_results_as_its_model_unpacks():
    model, other = pair("eager")
    given = []
    for one in (model, other):
        one.model.layers[0].self_attn.register_forward_hook(lambda *hooked: given.append(len(hooked[-1])))
        one(input_ids=IDS, use_cache=False)
    assert given[0] == given[1]


def test_a_config_of_the_script_belongs_to_the_model_of_its_base_class():
    class Own(LlamaConfig):
        pass

    model, _ = pair("eager")
    given = []
    model.model.layers[0].self_attn.register_forward_hook(lambda *hooked: given.append(len(hooked[-1])))
    model(input_ids=IDS, use_cache=False)
    attention = LlamaFlashAttention(Own(**SIZES))
    angles = torch.zeros(2, 7, 8)
    assert [len(attention(torch.zeros(2, 7, 32), position_embeddings=(angles, angles)))] == given


def test_checkpointed_layers_train():
    _, other = pair("sdpa")
    other.train().gradient_checkpointing_enable()
    other(input_ids=IDS, labels=IDS, use_cache=False).loss.backward()
    assert all(one.grad is not None for one in other.parameters())
