"""Sharded data parallelism: replicas hold parameters, gradients and optimizer state in shards (ZeRO-3, MiCS).

Where: `groups` makes the groups of ranks, `units` and `layout` plan the parameters of each flat buffer, `flat` is one
such buffer, `collectives` gathers and reduces buffers, `model` gathers them when modules run and reduces their
gradients, `optimizer` steps on the shards, `state` saves and loads. `optimizer_state` is a separate feature: whole
parameters on every rank, and each parameter's optimizer state on one rank.

[Note: two hops] n replicas with a sharding degree of k are n/k sharding groups of k consecutive ranks. Every backward
pass reduces gradients to shards within the sharding group; ranks that hold the same shard, k apart, form a replication
group, over which shards are reduced only before a step of the optimizer.
Source: MiCS (arXiv 2205.00119); ZeRO (arXiv 1910.02054); the SageMaker developer guide, "Sharded Data Parallelism".
"""
