"""Evidence that a file of the checkpoint folder is whole (docs/adr/0029-a-set-is-whole-when-something-says-so.md).

observations, judging, markers   data and policy, pure: what was seen of a file -> a decision with its reason
open_files, processes            who has a file open for writing; who of the program lives, and how others ended
inotify, folder_events           what happened in the folder between two looks
witness                          all of it for one folder; the looks ask it
"""
