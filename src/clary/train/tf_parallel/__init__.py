"""Model parallelism on TensorFlow 2: the graph of a training step cut over ranks, microbatches in a pipeline.

session      the state of a process: its place, its groups, its configuration
links        objects and arrays between ranks
step         decorator of a step's function: cuts arguments (`arguments`), traces once for each kind of arguments, runs
             once per microbatch
tracing      the function as a graph, with the layer and mark of every operation
cutting      the part of every layer and variable; costs: the cost of each layer, for the automatic cut
placement    the model part of every operation
marks        smp.partition; hooks: calls that are delayed until a model is cut
graphs/      graphs without TensorFlow: nodes; levels, the level of each operation; work, the operations and
             messages of one rank; timetable, their levels; order, the sequence of microbatches and levels
plan         the plan of one traced step; segments: its functions; running: one call of it
model        smp.DistributedModel; variables: this rank's and others'; saving: the whole model as a SavedModel
outputs      results of a step over all microbatches
checkpoint   checkpoints, a folder for each part; checkpoint_files: their files, and copies from rank to rank
gradients    gradients of a loss inside of a step; norms: the norm of all parts' gradients, outside of a step
"""
