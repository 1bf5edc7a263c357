"""What a user's train.py may import: collectives, what is built on them, and checkpoints."""
