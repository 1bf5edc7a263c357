"""Rules over what a job's hosts measured, and the report that shows what they say. Pure."""
