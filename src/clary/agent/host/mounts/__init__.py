"""The files that a host sees: its root, its binds, its views of /proc and /sys."""
