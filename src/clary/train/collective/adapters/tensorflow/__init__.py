"""TensorFlow 2 over a group: gradients of all ranks, eagerly and inside `tf.function`.

process    the group of this process, and its ranks
layout     places of a list's tensors in one block; needs no framework
blocks     aligned memory that is used again once no tensor lies in it
lists      lists of arrays that are reduced or broadcast over a group, and compared before
memory     tensors' memory as arrays, and arrays' memory as tensors, without copies
ordered    functions of arrays as operations that all ranks run in one order
exchange   tensors reduced and broadcast
tape       a gradient tape whose gradients are those of all ranks
optimizer  optimizers of Keras 3, of legacy Keras and of TensorFlow 1 that apply the gradients of all ranks
xla        keeps Keras 3 from compiling models by XLA

Where: `smdistributed.dataparallel.tensorflow` and `horovod.tensorflow` export these names.
"""
