"""Files and variables by which unmodified clients find this service."""
