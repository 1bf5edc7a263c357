"""Settings of users: hyperparameters, entry points, distributions, named places, options of pip and MPI."""
