"""Hyperparameter tuning: trials so far, the next proposal, and the end. Pure."""
