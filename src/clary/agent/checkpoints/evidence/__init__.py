"""Evidence that a file of the checkpoint folder is whole (docs/adr/0029-a-set-is-whole-when-something-says-so.md).

observations, judging, markers   data and policy, pure: observations of a file -> a decision with its reason
open_files, processes            processes that have a file open for writing; the program's living and ended processes
inotify, folder_events           events in the folder between two looks
witness                          collects the evidence for one folder; each look queries it
"""
