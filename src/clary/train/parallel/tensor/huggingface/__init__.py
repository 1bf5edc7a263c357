"""transformers' models over a tensor group: the modules to replace or cut, and their checkpoints.

`architectures` has one literal table per model, `reader` makes hooks, replacements and translators of a table, `calls`
adapts calls and results, `translation` converts the names and shapes of states. A causal language model as a whole
becomes a `DistributedTransformerLMHead`, a single block of one a `DistributedTransformerLayer`, the encoder of BERT or
RoBERTa a `DistributedTransformer`. Written against transformers 5.
"""
