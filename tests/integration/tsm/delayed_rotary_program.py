"""Buffers of transformers' models whose initialisation is delayed: functions `test_...()` that `torch_programs` runs
with several versions of transformers."""

import torch
from transformers import (
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
)

from clary.train.parallel.fsdp.delayed import DelayedParamIniter

torch.set_num_threads(1)
SIZES = {
    "vocab_size": 60,
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
}
IDS = torch.arange(14).reshape(2, 7)


def all_buffers(model):
    found = dict(model.named_buffers())
    for name, module in model.named_modules():  # tensors that older models keep beside their buffers
        found |= {f"{name}.{one}": value for one, value in vars(module).items() if isinstance(value, torch.Tensor)}
    return found


def delayed(kind, config):
    with torch.device("meta"):
        model = kind(config)
    initer = DelayedParamIniter(model)
    with initer.validate_params_and_buffers_inited():
        for module in model.modules():
            initer.get_param_init_fn()(module)
        initer.get_post_param_init_fn()(model)
    return model


def assert_as_eager(kind, config_kind, **options):
    sizes = {**SIZES, **options}
    eager, model = kind(config_kind(**sizes)).eval(), delayed(kind, config_kind(**sizes)).eval()
    expected, found = all_buffers(eager), all_buffers(model)
    assert expected
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype, name
        assert torch.equal(found[name], value), name
    assert all(torch.isfinite(one).all() for one in model.parameters())
    model.load_state_dict(eager.state_dict())
    long = torch.arange(50).unsqueeze(0) % 60  # longer than max_position_embeddings
    for tokens in (IDS, long) if kind is not GPTNeoXForCausalLM else (IDS,):
        with torch.no_grad():
            logits = [one(input_ids=tokens, use_cache=False).logits for one in (eager, model)]
        assert torch.equal(*logits)


def test_llama():
    assert_as_eager(LlamaForCausalLM, LlamaConfig)
    assert_as_eager(LlamaForCausalLM, LlamaConfig, rope_theta=500.0)


def test_llama_with_scaled_positions():
    assert_as_eager(LlamaForCausalLM, LlamaConfig, rope_scaling={"type": "linear", "factor": 2.0})
    assert_as_eager(LlamaForCausalLM, LlamaConfig, rope_scaling={"type": "dynamic", "factor": 2.0})


def test_mistral():
    assert_as_eager(MistralForCausalLM, MistralConfig, num_key_value_heads=2, rope_theta=500.0)


def test_mixtral():
    assert_as_eager(MixtralForCausalLM, MixtralConfig, num_key_value_heads=2, num_local_experts=2)


def test_gpt_neox():
    assert_as_eager(GPTNeoXForCausalLM, GPTNeoXConfig)
    assert_as_eager(GPTNeoXForCausalLM, GPTNeoXConfig, rotary_emb_base=500.0, rotary_pct=0.5)


def test_gpt_neox_with_scaled_positions():
    assert_as_eager(GPTNeoXForCausalLM, GPTNeoXConfig, rotary_pct=1.0, rope_scaling={"type": "linear", "factor": 2.0})
    assert_as_eager(GPTNeoXForCausalLM, GPTNeoXConfig, rotary_pct=1.0, rope_scaling={"type": "dynamic", "factor": 2.0})
