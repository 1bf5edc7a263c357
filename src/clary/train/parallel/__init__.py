"""Model parallelism on torch: a model cut over ranks, trained as if it were whole.

mesh            which rank lies where, and the groups along every axis
configuration   the keys that scripts and jobs set, checked
microbatches    a step's arguments cut, its results put together
partition/      which part of a model goes to which pipeline rank
pipeline/       schedules of stages and microbatches
"""
