"""Tensor parallelism: layers whose weights are cut over the ranks of a tensor group, for SMP v1 and v2.

`collectives` holds communication steps with gradients; `layout` is the layout of hidden states over the group; `parts`
computes with slices, in our modules and in models that `fsdp.layers` cuts in place (ADR 85); `flash_layers` holds the
attention layers of both versions, `flash` and `rotary` their computation; `huggingface` describes transformers' models,
for both. `linear`, `embedding`, `attention`, `output`, `transformer` and `lm_head` are the layers of v1; `registry` and
`replacement` replace a model's own layers by them.
"""
