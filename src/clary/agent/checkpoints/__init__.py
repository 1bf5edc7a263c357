"""The checkpoint folder of a host: restored before the program starts, mirrored while it runs, flushed at its end.

places, folder, scanning   names that can be trusted; the folder as it is
grouping                   what of it may be taken
uploading, storing         into sets (`contract.checkpoint_sets`)
publishing                 and to where people look
listing, restore_plan, restoring   back
outcomes, progress, mirror rounds, stalls, the flush
host_checkpoints           all of it for one host, which the supervisor talks to
"""
