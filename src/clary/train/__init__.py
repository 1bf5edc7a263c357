"""What a user's train.py may import: collectives, and what is built on them."""
