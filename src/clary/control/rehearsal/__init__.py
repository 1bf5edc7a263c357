"""Rehearsals: a job under faults beside an uninterrupted twin, and the worth of its resumes. Pure.

faults       what is to strike and when: words, texts, draws from a seed
disks        how large the disks are that can be filled
orders       a rehearsal that the service is asked for, as arguments of the command
requests     two requests out of one, with places of their own
readings     steps and losses out of log lines
recordings   batches and optimizer steps out of what `compat.clary_rehearsal` wrote down
history      the steps that count, out of attempts
comparing    samples and losses against the twin's
curves       both losses, step by step, to be drawn
certificate  all of it together, and the verdict
"""
