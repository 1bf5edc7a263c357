"""Hosts on boxes: machines of a person that answer to SSH, or dial in by themselves."""
