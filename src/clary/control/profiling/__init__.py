"""Rules over the measurements of a job's hosts, and the report of their verdicts. Pure."""
