"""Hyperparameter tuning jobs for the AWS API, and the loop that runs them."""
