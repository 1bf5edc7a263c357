"""Plans of a step's graph, computed without TensorFlow: operations, levels, messages and orders of each rank."""
