"""Optimizers under the arguments of apex's fused ones: what they compute, in loops over lists of tensors (foreach).

Where: `smp.optimizers`; `steppers` tells them of the ranks that hold the other parts of a model, see `norms`.
"""
