"""Public buckets of AWS, read through this service: the client of AWS, and copies from there."""
