"""Optimizers under the arguments of apex's fused ones, computed in loops over lists of tensors (foreach).

Where: `smp.optimizers`; `steppers` tells them of the ranks that hold the other parts of a model, see `norms`.
"""
