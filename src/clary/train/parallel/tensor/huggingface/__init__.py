"""transformers' models over a tensor group: the modules to replace or cut, and their checkpoints.

`architectures` has one literal table per model, `reader` makes hooks, replacements and translators from a table,
`calls` adapts calls and results, `translation` converts the names and shapes of states. A whole GPT model with its head
becomes a `DistributedTransformerLMHead`, a single block of a GPT, OPT, ViT or Llama a `DistributedTransformerLayer`,
and the encoder of BERT or RoBERTa a `DistributedTransformer`. Written for transformers 5.
"""
