"""How the processes of a host are found, signalled and ended."""
