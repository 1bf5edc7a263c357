"""What the processes of a host are doing: stacks by py-spy, states, wait channels and connections from /proc."""
