"""Pipelines: a model in stages, microbatches that pass through them.

schedule    who does what when, as lists of actions that are checked, simulated and printed before anything runs
schedules   functions that write such lists: GPipe, 1F1B, interleaved 1F1B, ZB1P; zero_bubble: ZBV
stage       one stage on its rank; halves: its backward pass in two
exchange    activations and gradients between ranks; executor: runs a list; record, picture: what ran when
server      the module server of SMP v1: policies decide, workers take turns, remote calls, links carry messages
"""
