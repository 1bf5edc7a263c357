"""Foundation of every wing: errors, clocks, checked values, files below a descriptor, processes."""
