"""The state of a model and its optimizer: gathered from ranks, spread over ranks, kept in files.

model_state   a model's state: this rank's part, or all of it
files         one object in one file: named by the rank that wrote it
folders       checkpoints of all ranks, and resuming from them
places        where their folders lie while they are written, when they are whole, and when they are old
"""
