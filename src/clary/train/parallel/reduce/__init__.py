"""Averages gradients of replicas: the mean over the ranks that hold the same parameter.

Where: `DistributedModel` makes a `GradientReducer`, which sees every gradient, and has it reduce once per step.
`buckets` groups gradients for one message, `meeting` agrees on the ranks that take part, `reducer` runs the reduction;
scripts replace the sum by `hooks`; `ordered` adds gradients up in a fixed order, whenever they arrive.

[Note: bits] A bucket holds the same elements, divided and summed in the same way, whether it is sent during the
backward pass or after it: results are equal bit by bit.
"""
