"""Foundation of every part of Clary: errors, clocks, checked values, files below a descriptor, processes."""
