"""Distributed checkpoints: `state_dict_saver`, `state_dict_loader` and their helpers."""
