"""Imports apex and Transformer Engine as scripts do, where neither is installed, and prints the outcome as JSON."""

import importlib.util
import json

import torch

from clary.compat.clary_cuda_on_cpu.stand_ins import stand_in_for_kernels

try:
    import amp_C
except ImportError as error:
    before = type(error).__name__
stand_in_for_kernels()
stand_in_for_kernels()
asked = [importlib.util.find_spec(name) is not None for name in ("apex", "amp_C", "transformer_engine")]

import amp_C  # noqa: E402 - found from here on
import transformer_engine  # noqa: E402 - found from here on
from apex.multi_tensor_apply import multi_tensor_applier  # noqa: E402 - found from here on
from transformer_engine.common.recipe import DelayedScaling, Format  # noqa: E402 - found from here on

tensors = [torch.tensor([3.0, 0.0]), torch.tensor([[4.0]])]
overflow = torch.zeros(1, dtype=torch.int)
norm, none = multi_tensor_applier(amp_C.multi_tensor_l2norm, overflow, [tensors], False)
_, each = multi_tensor_applier(amp_C.multi_tensor_l2norm, overflow, [tensors], True)
halves = [torch.empty(2, dtype=torch.float16), torch.empty(1, 1)]
multi_tensor_applier(amp_C.multi_tensor_scale, overflow, [tensors, halves], 0.5)
finite = overflow.item()
multi_tensor_applier(amp_C.multi_tensor_scale, overflow, [[torch.tensor([float("inf")])], [torch.empty(1)]], 1.0)

from flash_attn.flash_attention import FlashAttention  # noqa: E402 - as the ones above

generator = torch.Generator().manual_seed(1)
qkv = torch.randn(2, 5, 3, 4, 8, generator=generator)
scores = torch.einsum("bqhd,bkhd->bhqk", qkv[:, :, 0], qkv[:, :, 1]) / 8**0.5
scores = scores.masked_fill(~torch.ones(5, 5, dtype=torch.bool).tril(), float("-inf"))
wanted = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), qkv[:, :, 2])
attended, weights = FlashAttention()(qkv, causal=True)

recipe = DelayedScaling(fp8_format=Format.HYBRID, amax_history_len=16)
weight = torch.ones(3, requires_grad=True)
with transformer_engine.pytorch.fp8_autocast(enabled=True, fp8_recipe=recipe, fp8_group=None):
    total = transformer_engine.pytorch.checkpoint(
        lambda x, factor: (x * x * factor).sum(),
        weight,
        factor=2.0,
        distribute_saved_activations=False,
        get_rng_state_tracker=None,
        tp_group=None,
        use_reentrant=False,
    )
total.backward()
refusals = []
try:
    transformer_engine.pytorch.Linear(2, 2)
except AttributeError as error:
    refusals.append(str(error))
try:
    from apex import amp  # noqa: F401 - there is none
except ImportError:
    refusals.append("no amp")
try:
    FlashAttention()(qkv, key_padding_mask=torch.ones(2, 5))
except NotImplementedError as error:
    refusals.append(str(error))
print(
    json.dumps(
        {
            "before": before,
            "asked": asked,
            "norm": norm.tolist(),
            "each": each.tolist(),
            "none": none,
            "halves": [one.flatten().tolist() for one in halves],
            "attention": [(attended - wanted).abs().max().item(), weights],
            "overflow": [finite, overflow.item()],
            "recipe": recipe.amax_history_len,
            "gradient": weight.grad.tolist(),
            "refusals": refusals,
        }
    )
)
