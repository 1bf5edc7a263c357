"""The `clary` command: one file for each subcommand."""
