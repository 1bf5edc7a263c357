"""When the processes of a job's hosts have found each other, judged by their connections."""
