"""The state of a model and its optimizer: gathered from ranks, spread over ranks, kept in files.

model_state   a model's state: this rank's part, or the whole state
files         one object in one file, named by the rank that wrote it
folders       checkpoints of all ranks, and resuming from them
places        folders of checkpoints: being written, complete, and old
"""
