"""The `clary` command: one file a verb."""
