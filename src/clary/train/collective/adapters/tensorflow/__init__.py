"""TensorFlow 2 over a group: gradients reduced over all ranks, eagerly and inside `tf.function`.

process      the group that this process belongs to
layout       offsets of a list's tensors in one block; imports no framework
blocks       aligned memory that is reused once no tensor uses it
lists        lists of arrays that are compared between ranks, then reduced or broadcast
memory       tensors as arrays and arrays as tensors, without copies where possible
ordered      functions of arrays as operations that all ranks run in one order
exchange     reduction and broadcast of tensors
compression  types in which gradients are sent
tape         a gradient tape that reduces its gradients over all ranks
optimizer    optimizers of Keras 3, legacy Keras and TensorFlow 1 that apply gradients reduced over all ranks
xla          prevents Keras 3 from compiling models by XLA

Where: `smdistributed.dataparallel.tensorflow`, `horovod.tensorflow` and SMP for TensorFlow (`train.tf_parallel`) use
these modules.
"""
