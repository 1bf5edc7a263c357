"""Context parallelism: the ranks of a group hold parts of each sequence, and attention sees all of it.

`layout` says which parts; `batches` cuts batches and labels; `gathered` and `ring` are two ways for attention,
`blocks` what the ring computes; `interception` and `spreading` put them into a model.
"""
