"""Detects, by their connections, when the processes of a job's hosts have found each other."""
