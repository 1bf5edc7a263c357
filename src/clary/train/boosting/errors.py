"""The error of this program that a user can mend."""

from __future__ import annotations


class UserMistake(Exception):
    """A request or data that the algorithm cannot take; the text becomes the job's failure."""
