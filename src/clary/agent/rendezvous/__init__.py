"""Detection of the moment when the processes of a job's hosts have connected to each other."""
