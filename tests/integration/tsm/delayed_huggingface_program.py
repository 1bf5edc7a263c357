"""Models of transformers whose initialisation is delayed: functions `test_...()` that `torch_programs` runs."""

import torch
from accelerate import init_empty_weights
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from clary.train.parallel.fsdp.delayed import DelayedParamIniter
from clary.train.parallel.memory.checkpointing import set_activation_checkpointing
from clary.train.parallel.memory.delayed import delay_param_initialization, materialize

torch.set_num_threads(1)
SIZES = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128}
TOKENS = {"vocab_size": 500, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def assert_as_eager(kind, configuration):
    torch.manual_seed(0)
    eager = kind(configuration)
    after = torch.rand(1)
    torch.manual_seed(0)
    with delay_param_initialization():
        model = kind(configuration)
    assert torch.equal(torch.rand(1), after)
    assert all(parameter.is_meta for parameter in model.parameters())
    names = [name for name, _ in model.named_parameters()]
    assert sorted(materialize(model)) == sorted(names)
    for (name, value), expected in zip(model.state_dict().items(), eager.state_dict().values(), strict=True):
        assert torch.equal(value, expected), name
    return eager, model


def test_gpt2_and_its_tied_head():
    eager, model = assert_as_eager(GPT2LMHeadModel, GPT2Config(n_layer=2, n_embd=64, n_head=4, **TOKENS))
    assert model.lm_head.weight is model.transformer.wte.weight
    ids = torch.arange(12).reshape(2, 6)
    losses = []
    for block in model.transformer.h:
        set_activation_checkpointing(block)
    for one in (eager, model):
        torch.manual_seed(1)
        loss = one(ids, labels=ids, use_cache=False).loss
        loss.backward()
        losses.append(loss.detach())
    assert torch.equal(*losses)
    for one, other in zip(eager.parameters(), model.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)


def test_bert():
    assert_as_eager(BertForMaskedLM, BertConfig(**SIZES, **TOKENS))


def test_llama():
    assert_as_eager(LlamaForCausalLM, LlamaConfig(**SIZES, **TOKENS))


def test_gpt_neox():
    assert_as_eager(GPTNeoXForCausalLM, GPTNeoXConfig(**SIZES, **TOKENS))


def test_t5():
    configuration = T5Config(num_layers=2, d_model=64, d_ff=128, num_heads=4, d_kv=16, vocab_size=500)
    assert_as_eager(T5ForConditionalGeneration, configuration)


def test_models_that_accelerate_made_keep_their_ties():
    for kind, configuration in (
        (GPT2LMHeadModel, GPT2Config(n_layer=2, n_embd=64, n_head=4, **TOKENS)),
        (LlamaForCausalLM, LlamaConfig(**SIZES, **TOKENS, tie_word_embeddings=True)),
        (LlamaForCausalLM, LlamaConfig(**SIZES, **TOKENS, tie_word_embeddings=False)),
        (
            T5ForConditionalGeneration,
            T5Config(num_layers=2, d_model=64, d_ff=128, num_heads=4, d_kv=16, vocab_size=500),
        ),
    ):
        expected = {name for name, _ in kind(configuration).named_parameters()}
        with init_empty_weights():
            model = kind(configuration)
        assert all(parameter.is_meta for parameter in model.parameters())
        initer = DelayedParamIniter(model)
        with initer.validate_params_and_buffers_inited():
            for module in model.modules():
                initer.get_param_init_fn()(module)
            initer.get_post_param_init_fn()(model)
        assert {name for name, _ in model.named_parameters()} == expected, kind
        is_tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
        assert is_tied == configuration.tie_word_embeddings, kind
        assert all(torch.isfinite(parameter).all() for parameter in model.parameters()), kind
