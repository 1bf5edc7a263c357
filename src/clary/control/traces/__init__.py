"""Analysis of the ranks' traces: shares of a step, collectives across ranks, one file on one time axis.

Where: `reconcile.desks.profile_keeping` runs `python -m clary.control.traces FOLDER` over a complete profile, in a
process of its own: traces are long, and would delay the service's other answers.
"""
