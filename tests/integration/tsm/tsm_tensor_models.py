"""Small decoders for tests of tensor parallelism: written here after Llama and GPT-NeoX, or taken from transformers.

Batches are token ids [batch, sequence]; a model called with `labels` returns its loss, a mean over positions.
"""

import os
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional

VOCABULARY = 32
WIDTH = 16
_INNER = 24
_LAYERS = 2


@dataclass
class Output:  # FSDP finds tensors in dataclasses
    logits: torch.Tensor
    loss: torch.Tensor | None


def rotate(states):
    """Rotate channels of [batch, heads, sequence, channels] by their position."""
    half = states.shape[-1] // 2
    angles = torch.arange(states.shape[2])[:, None] / 100 ** (torch.arange(half) / half)
    first, second = states[..., :half], states[..., half:]
    return torch.cat((first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()), -1)


class LlamaRMSNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, states):
        return self.weight * states * torch.rsqrt(states.pow(2).mean(-1, keepdim=True) + 1e-5)


class LlamaAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config, self.head_dim = config, WIDTH // config.num_attention_heads
        self.attention_dropout = config.attention_dropout
        width = self.head_dim * config.num_key_value_heads
        self.q_proj = nn.Linear(WIDTH, WIDTH, bias=True)
        self.k_proj = nn.Linear(WIDTH, width, bias=False)
        self.v_proj = nn.Linear(WIDTH, width, bias=False)
        self.o_proj = nn.Linear(WIDTH, WIDTH, bias=True)

    def forward(self, hidden_states, mask=None):
        shape = (*hidden_states.shape[:2], -1, self.head_dim)
        query, key, value = (
            one(hidden_states).view(shape).transpose(1, 2) for one in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, key = rotate(query), rotate(key)
        groups = query.shape[1] // key.shape[1]
        found = functional.scaled_dot_product_attention(
            query,
            key.repeat_interleave(groups, 1),
            value.repeat_interleave(groups, 1),
            is_causal=True,
            dropout_p=self.attention_dropout if self.training else 0.0,
        )
        return self.o_proj(found.transpose(1, 2).flatten(2))


class LlamaMLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj = nn.Linear(WIDTH, _INNER, bias=False)
        self.up_proj = nn.Linear(WIDTH, _INNER, bias=False)
        self.down_proj = nn.Linear(_INNER, WIDTH, bias=False)

    def forward(self, x):
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class LlamaDecoderLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.self_attn, self.mlp = LlamaAttention(config), LlamaMLP()
        self.input_layernorm, self.post_attention_layernorm = LlamaRMSNorm(), LlamaRMSNorm()
        self.dropout = nn.Dropout(config.hidden_dropout)

    def forward(self, states):
        states = states + self.dropout(self.self_attn(hidden_states=self.input_layernorm(states)))
        return states + self.mlp(self.post_attention_layernorm(states))


class LlamaModel(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, WIDTH, padding_idx=3)
        self.layers = nn.ModuleList(LlamaDecoderLayer(config) for _ in range(_LAYERS))
        self.norm = LlamaRMSNorm()

    def forward(self, tokens):
        states = self.embed_tokens(tokens)
        for layer in self.layers:
            states = layer(states)
        return self.norm(states)


def llama_config(**keys):
    return SimpleNamespace(
        **{
            "vocab_size": VOCABULARY,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "attention_dropout": 0.0,
            "hidden_dropout": 0.0,
            "tie_word_embeddings": False,
            **keys,
        }
    )


class LlamaForCausalLM(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config, self.model = config, LlamaModel(config)
        self.lm_head = nn.Linear(WIDTH, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, input_ids, labels=None):
        logits = self.lm_head(self.model(input_ids))
        return Output(logits=logits, loss=None if labels is None else loss_of(logits, labels))

    def _init_weights(self, module):
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.1)
            if getattr(module, "bias", None) is not None:
                nn.init.zeros_(module.bias)
            if isinstance(module, nn.Embedding):
                with torch.no_grad():
                    module.weight[module.padding_idx].zero_()


class GPTNeoXAttention(nn.Module):
    """Attention with sizes as its own attributes, as in transformers before 4.48."""

    def __init__(self):
        super().__init__()
        self.num_attention_heads, self.head_size, self.hidden_size = 4, WIDTH // 4, WIDTH
        self.query_key_value = nn.Linear(WIDTH, 3 * WIDTH)
        self.dense = nn.Linear(WIDTH, WIDTH)

    def forward(self, states):
        shape = (*states.shape[:2], self.num_attention_heads, 3 * self.head_size)
        query, key, value = self.query_key_value(states).view(shape).transpose(1, 2).chunk(3, -1)
        found = functional.scaled_dot_product_attention(rotate(query), rotate(key), value, is_causal=True)
        return self.dense(found.transpose(1, 2).reshape(*states.shape[:2], self.hidden_size))


class GPTNeoXMLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense_h_to_4h = nn.Linear(WIDTH, 4 * WIDTH)
        self.dense_4h_to_h = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, states):
        return self.dense_4h_to_h(functional.gelu(self.dense_h_to_4h(states)))


class GPTNeoXLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.mlp = GPTNeoXAttention(), GPTNeoXMLP()

    def forward(self, states):
        return states + self.attention(self.input_layernorm(states)) + self.mlp(self.post_attention_layernorm(states))


class GPTNeoXForCausalLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_in = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(GPTNeoXLayer() for _ in range(_LAYERS))
        self.embed_out = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, input_ids, labels=None):
        states = self.embed_in(input_ids)
        for layer in self.layers:
            states = layer(states)
        logits = self.embed_out(states)
        return Output(logits=logits, loss=None if labels is None else loss_of(logits, labels))


def loss_of(logits, labels):
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def families():
    """Return functions that make models, by the name of the family; CLARY_TEST_FAMILIES selects the families."""
    if os.environ["CLARY_TEST_FAMILIES"] == "own":
        return {
            "llama": lambda: LlamaForCausalLM(llama_config()),
            "llama tied": lambda: LlamaForCausalLM(llama_config(tie_word_embeddings=True)),
            "llama with an odd vocabulary": lambda: LlamaForCausalLM(llama_config(vocab_size=VOCABULARY - 1)),
            "neox": GPTNeoXForCausalLM,
        }
    import transformers

    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "intermediate_size": _INNER,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": 4,
        "max_position_embeddings": 32,
        "pad_token_id": 3,
    }
    grouped = {**sizes, "num_key_value_heads": 2}
    return {
        "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**grouped, attention_bias=True)),
        "llama tied": lambda: transformers.LlamaForCausalLM(
            transformers.LlamaConfig(**grouped, tie_word_embeddings=True, attn_implementation="eager")
        ),
        "mistral": lambda: transformers.MistralForCausalLM(transformers.MistralConfig(**grouped, sliding_window=4)),
        "mixtral": lambda: transformers.MixtralForCausalLM(
            transformers.MixtralConfig(**grouped, num_local_experts=4, num_experts_per_tok=2)
        ),
        "neox": lambda: transformers.GPTNeoXForCausalLM(
            transformers.GPTNeoXConfig(**sizes, hidden_dropout=0.0, attention_dropout=0.0)
        ),
    }


def two_families():
    """Return the two families that differ most: one with tied weights and grouped heads, one with fused matrices."""
    made = families()
    return {name: made[name] for name in ("llama tied", "neox")}


def first_layer(model):
    """Return the model's first decoder layer."""
    return next(part for name, part in model.named_modules() if name.endswith("layers.0"))
