"""State of a host's processes: stacks by py-spy; states, wait channels and connections from /proc."""
