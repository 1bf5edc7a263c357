"""What a host sees of the machine's files: its root, its binds, its views of /proc and /sys."""
