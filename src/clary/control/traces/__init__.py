"""Analysis of the ranks' traces: shares of a step, collectives across ranks, one file on one time axis.

Where: `reconcile.desks.profile_keeping` runs `python -m clary.control.traces FOLDER` over a profile that is whole, in a
process of its own: traces are long, and the service has others to answer meanwhile.
"""
