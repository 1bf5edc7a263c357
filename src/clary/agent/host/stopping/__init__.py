"""How the processes of a host are found, told to end, and ended."""
