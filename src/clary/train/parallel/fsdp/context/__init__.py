"""Context parallelism: the ranks of a group hold parts of each sequence, and attention sees the whole sequence.

`layout` defines the parts; `batches` cuts batches and labels; `gathered` and `ring` are two ways to compute attention,
`blocks` the ring's kernels; `interception` and `spreading` put them into a model.
"""
