"""Context parallelism: the ranks of a group hold parts of each sequence, and attention spans the whole sequence.

`layout` defines the parts; `batches` cuts batches and labels; `gathered` and `ring` are two ways to compute attention,
`blocks` the ring's kernels; `interception` and `spreading` install them in a model.
"""
