"""Rehearsals: a job under faults is compared with an uninterrupted twin, to check how the job resumes. Pure.

faults       planned faults and their times: words, texts, draws from a seed
disks        sizes of disks that faults fill
orders       a request for a rehearsal, as arguments of the command
requests     two requests from one, with their own S3 prefixes
readings     steps and losses from log lines
recordings   batches and optimizer steps from records of `compat.clary_rehearsal`
history      the steps of all attempts that led to the model
comparing    samples and losses compared with the twin's
curves       losses of both jobs, step by step, for charts
certificate  all results, and the verdict
"""
