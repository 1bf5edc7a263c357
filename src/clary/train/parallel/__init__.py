"""Model parallelism on torch: a model split over ranks, trained as if it were whole.

layout/         places of ranks, groups along every axis, and names of groups
configuration   the keys that scripts and jobs set, validated
runtime         a process's place, groups and device
groups          process groups of a mesh, and objects between ranks
step            runs the function of a training step once for each microbatch; microbatches cuts and merges
model           the wrapped model; placed_model and stateful_model are its base classes
optimizer       the wrapped optimizer; steppers holds its variants of a step
partition/      the assignment of a model's parts to pipeline ranks
pipeline/       the module server, and schedules of stages and microbatches
tensor/         layers cut over tensor groups
reduce/         averaging of gradients over replicas
sharded/        parameters, gradients and optimizer state in shards
optimizers/     optimizers that scale by norms of parameters
mistakes/       detection of mistakes in scripts
memory/         recomputation and offloading of activations, delayed creation of parameters
checkpoint/     states of models and optimizers in files
fsdp/           the additions of SMP v2 to torch's FSDP
"""
