"""Layout of ranks, without a framework: the mesh of axes, a rank's coordinates in it, and named groups."""
