"""Averaging of gradients over the ranks that hold the same parameter.

Where: `DistributedModel` makes a `GradientReducer`, which tracks every gradient and reduces once per step. `buckets`
groups gradients into messages, `meeting` agrees on the ranks that take part, `reducer` runs the reduction; scripts can
replace the sum through `hooks`; `joining` lets replicas end at different steps; `ordered` sums gradients in a fixed
order, regardless of their arrival.

[Note: bits] A bucket holds the same elements, divided and summed in the same way, whether it is sent during the
backward pass or after it: so the results are bitwise equal.
"""
