"""State of a host's processes: stacks by py-spy; states, waits and connections from /proc; collectives from records."""
