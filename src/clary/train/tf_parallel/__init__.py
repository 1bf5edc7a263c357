"""Model parallelism on TensorFlow 2: the graph of a training step cut over ranks, microbatches in a pipeline.

session      what a process knows: its place, its groups, its configuration
links        objects and arrays between ranks
step         the function of a step: split, traced once, run once a microbatch
tracing      the function as a graph; marks, layers: which operation belongs to which part of the model
costs        what each layer costs, for the automatic cut
placement    the part of every operation and of every variable
graphs/      graphs without TensorFlow: nodes; levels, when an operation can run; work, what one rank runs, sends and
             receives; timetable, at which level; order, in which it takes microbatches and levels
plan         all of these for one traced step; segments: its functions; running: one call of it
model        smp.DistributedModel; variables: those of this rank and of others; saving: the whole model in one file
outputs      results of a step over all microbatches
checkpoint   checkpoints, a folder for each part
gradients    gradients of a loss inside of a step; norms of the gradients of all parts outside
"""
