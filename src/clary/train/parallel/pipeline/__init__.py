"""Pipelines: a model in stages, through which microbatches pass.

schedule    the order of all ranks' actions, as lists that can be checked, simulated and printed before a run
schedules   functions that write such lists: GPipe, 1F1B, interleaved 1F1B, ZB1P; zero_bubble: ZBV
stage       one stage on its rank; halves: its backward pass in two parts
exchange    activations and gradients between ranks; executor: runs a list; record, picture: times of actions
server      the module server of SMP v1: policies decide, workers take turns, remote makes calls, links carry messages
"""
