"""The checkpoint folder of a host: restored before the program starts, mirrored while it runs, flushed at its end.

places, folder, scanning: checked paths and keys; safe opening and scans of the folder
grouping, sights, choosing: groups of files, their changes, the choice of files for the next set
evidence, log_names: evidence that a file is whole; recognition of logs by name
held_files, looking: files replaced before they were at rest; successive scans ("looks")
uploading, storing: upload into sets (`contract.checkpoint_sets`)
publishing: copies at the paths that users read
listing, restore_plan, restoring, history: the restore from the store, and its result
step_counts: the debugger's step counts in sets
outcomes, progress, mirror: rounds of the mirror, detection of stalls, the final flush
host_checkpoints: the interface to the supervisor: restore and mirror of one host
"""
