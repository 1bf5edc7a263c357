"""Planning of a step's graph without TensorFlow: operations, levels, messages and order of each rank."""
