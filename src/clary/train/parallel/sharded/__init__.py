"""Sharded data parallelism: replicas hold parameters, gradients and optimizer state in shards (ZeRO-3, MiCS).

Where: `groups` makes the groups of ranks, `units` and `layout` plan the parameters of each flat buffer, `flat` is one
such buffer, `collectives` gathers and reduces buffers, `model` gathers buffers when modules run and reduces gradients,
`optimizer` updates shards, `state` saves and loads. `optimizer_state` is a separate feature: whole parameters on every
rank, and each parameter's optimizer state on one rank.

[Note: two hops] With a sharding degree of k, n replicas form n/k sharding groups of k consecutive ranks. Every backward
pass reduces gradients to shards within the sharding group (first hop). Ranks that hold the same shard, k apart, form a
replication group. Gradient shards are reduced over it only before a step of the optimizer (second hop).
Source: MiCS (arXiv 2205.00119); ZeRO (arXiv 1910.02054); the SageMaker developer guide, "Sharded Data Parallelism".
"""
