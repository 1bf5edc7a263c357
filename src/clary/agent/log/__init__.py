"""The log of a host: from the bytes that processes print to the lines that the service has stored."""
