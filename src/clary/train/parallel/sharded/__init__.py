"""Sharded data parallelism: replicas hold parameters, gradients and optimizer state in shards (ZeRO-3, MiCS).

Where: `groups` says who shares what, `units` and `layout` plan which parameters lie behind each other in which flat
buffer, `flat` is one such buffer, `collectives` moves them, `model` gathers them when modules run and reduces their
gradients, `optimizer` steps on the shards, `state` saves and loads. `optimizer_state` is another thing: whole
parameters on every rank, and optimizer state at one rank each.

[Note: two hops] n replicas with a sharding degree of k are n/k sharding groups of k consecutive ranks. Every backward
pass reduces gradients to shards within the sharding group; ranks that hold the same shard, k apart, form a replication
group, over which shards are reduced only once the optimizer is to step.
Source: MiCS (arXiv 2205.00119); ZeRO (arXiv 1910.02054); the SageMaker developer guide, "Sharded Data Parallelism".
"""
