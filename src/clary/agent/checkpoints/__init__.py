"""The checkpoint folder of a host: restored before the program starts, mirrored while it runs, flushed at its end.

places, folder, scanning   names that can be trusted; the folder as it is
grouping, sights, choosing what of it belongs together, what has changed since when, what may be taken
evidence, log_names        what says of a file that it is whole
held_files, looking        files that are replaced before they have rested; looks one after the other
uploading, storing         into sets (`contract.checkpoint_sets`)
publishing                 and to where people look
listing, restore_plan, restoring   back
outcomes, progress, mirror rounds, stalls, the flush
host_checkpoints           all of it for one host, which the supervisor talks to
"""
