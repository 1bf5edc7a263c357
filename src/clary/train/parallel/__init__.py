"""Model parallelism on torch: a model cut over ranks, trained as if it were whole.

layout/         which rank lies where, the groups along every axis, and their names
configuration   the keys that scripts and jobs set, checked
runtime         what a process knows: its place, its groups, its device
groups          process groups of a mesh, and objects between ranks
step            the function of a training step, once a microbatch; microbatches cuts and merges
model           the wrapped model; placed_model and stateful_model are what it is made of
optimizer       the wrapped optimizer; steppers are the ways in which it steps
partition/      which part of a model goes to which pipeline rank
pipeline/       the module server, and schedules of stages and microbatches
tensor/         layers that are cut over tensor groups
sharded/        parameters, gradients and optimizer state in shards
memory/         activations recomputed and offloaded, parameters made late
checkpoint/     states in files
fsdp/           what SMP v2 adds to torch's FSDP
"""
