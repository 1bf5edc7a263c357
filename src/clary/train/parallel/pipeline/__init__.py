"""Pipelines: a model in stages, microbatches that pass through them.

schedule    who does what when, as lists of actions that are checked, simulated and printed before anything runs
schedules   functions that write such lists: GPipe, 1F1B, zero-bubble
"""
