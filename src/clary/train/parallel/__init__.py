"""Model parallelism on torch: a model split over ranks, trained as if it were whole.

layout/         places of ranks, the groups along every axis, and their names
configuration   the keys that scripts and jobs set, checked
runtime         a process's place, groups and device
groups          process groups of a mesh, and objects between ranks
step            the function of a training step, once a microbatch; microbatches cuts and merges
model           the wrapped model; placed_model and stateful_model are its base classes
optimizer       the wrapped optimizer; steppers are the ways in which it steps
partition/      the assignment of a model's parts to pipeline ranks
pipeline/       the module server, and schedules of stages and microbatches
tensor/         layers that are cut over tensor groups
sharded/        parameters, gradients and optimizer state in shards
memory/         activations recomputed and offloaded, parameters made late
checkpoint/     states in files
fsdp/           the additions of SMP v2 to torch's FSDP
"""
