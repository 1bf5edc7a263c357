"""Optimizers with the arguments of apex's fused optimizers, computed in loops over lists of tensors (foreach).

Where: `smp.optimizers`; `steppers` replaces their norms by norms over all ranks that hold parts of a model, see
`norms`.
"""
