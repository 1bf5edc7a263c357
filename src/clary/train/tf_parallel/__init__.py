"""Model parallelism on TensorFlow 2: the graph of a training step cut over ranks, microbatches in a pipeline.

session      the state of a process: its place, its groups, its configuration
links        objects and arrays between ranks
step         the function of a step: split, traced once, run once per microbatch
tracing      the function as a graph; marks, layers: the part of the model of every operation
costs        the cost of each layer, for the automatic cut
placement    the part of every operation and of every variable
graphs/      graphs without TensorFlow: nodes; levels, the earliest level of each operation; work, the operations and
             messages of one rank; timetable, their levels; order, the sequence of microbatches and levels
plan         all of these for one traced step; segments: its functions; running: one call of it
model        smp.DistributedModel; variables: of this rank and of others; saving: the whole model in one file
outputs      results of a step over all microbatches
checkpoint   checkpoints, a folder for each part
gradients    gradients of a loss inside of a step; norms of the gradients of all parts outside
"""
