"""The files that a host sees: its root, its bind mounts, its /proc and /sys."""
