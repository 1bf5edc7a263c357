"""Tensor parallelism: layers whose weights are cut over the ranks of a tensor group.

`collectives` are the steps between ranks with their gradients; `layout` says how hidden states lie over the group;
`linear`, `embedding`, `attention`, `output`, `transformer` and `lm_head` are the layers; `registry` and `replacement`
put them in the place of a model's own; `huggingface` knows transformers' models.
"""
