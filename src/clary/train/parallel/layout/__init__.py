"""Places of ranks, without a framework: the mesh of axes, the place of a rank in it, and groups by name."""
