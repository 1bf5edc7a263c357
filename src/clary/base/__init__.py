"""What every wing is built on: errors, clocks, checked values, files below a descriptor, processes."""
