"""Tensor parallelism: layers whose weights are cut over the ranks of a tensor group, for SMP v1 and v2.

`collectives` are the steps between ranks with their gradients; `layout` says how hidden states lie over the group;
`parts` compute with slices, in modules of ours and in those of a model that `fsdp.layers` cuts in place (ADR 85);
`flash_layers` are attention layers of both versions. The rest is v1: `linear`, `embedding`, `attention`, `output`,
`transformer` and `lm_head` are the layers; `registry` and `replacement` put them in the place of a model's own.
`huggingface` knows transformers' models, for both.
"""
