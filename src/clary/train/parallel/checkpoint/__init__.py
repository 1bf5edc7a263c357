"""The state of a model and its optimizer: gathered from ranks, spread over ranks, kept in files.

model_state   a model's state: this rank's part, or all of it
files         one object in one file: named by the rank that wrote it
folders       checkpoints of all ranks, and resuming from them
places        their folders while they are written, once they are whole, and once they are old
"""
