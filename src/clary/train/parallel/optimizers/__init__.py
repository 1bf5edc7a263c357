"""Optimizers with the arguments of apex's fused optimizers, computed in loops over lists of tensors (foreach).

Where: `smp.optimizers`; `steppers` gives them norms over the ranks that hold the other parts of a model, see `norms`.
"""
