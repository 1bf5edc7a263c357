"""Places of ranks, without a framework: the mesh of axes, a rank's place in it, and groups by name."""
