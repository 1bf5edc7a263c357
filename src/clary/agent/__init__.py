"""The program that runs on every host of a job. Standard library only."""
