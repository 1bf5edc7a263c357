"""What became of jobs and where their time went, worked out from what is stored. Pure."""
