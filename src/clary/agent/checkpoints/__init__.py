"""The checkpoint folder of a host: restored before the program starts, mirrored while it runs, flushed at its end.

places, folder, scanning   names that can be trusted; the folder as it is
grouping, sights, choosing its groups, their changes, the files that may join a set now
evidence, log_names        evidence that a file is whole
held_files, looking        files that are replaced before they have rested; successive looks
uploading, storing         upload into sets (`contract.checkpoint_sets`)
publishing                 upload to the paths that users read
listing, restore_plan, restoring   the restore from the store
outcomes, progress, mirror rounds, stalls, the flush
host_checkpoints           all of it for one host, which the supervisor talks to
"""
