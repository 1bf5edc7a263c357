"""Settings of users: hyperparameters, entry points, distributions, S3 addresses and folders, pip and MPI options."""
