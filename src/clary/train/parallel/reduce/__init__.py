"""Gradients of replicas made one: the mean over the ranks that hold the same parameter.

Where: `DistributedModel` makes a `GradientReducer`, tells it of every gradient, and has it reduce once a step.
`buckets` says which gradients travel together, `meeting` who takes part, `reducer` runs the whole; `hooks` are what
scripts put in place of the sum; `ordered` adds gradients up in one order, whenever they come.

[Note: bits] A bucket holds the same elements, divided and summed in the same way, whether it goes while the backward
pass runs or after it: results are equal bit by bit.
"""
