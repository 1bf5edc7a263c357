"""The logger of the containers."""

from __future__ import annotations

import logging

_QUIET = ("boto3", "s3transfer", "botocore")  # libraries whose lines would drown the script's


def get_logger() -> logging.Logger:
    """Return the toolkit's logger."""
    return logging.getLogger("sagemaker-training-toolkit")


def configure_logger(level: int, log_format: str = "%(asctime)s %(name)-12s %(levelname)-8s %(message)s") -> None:
    """Log at this level and in this format, unless logging is configured already."""
    logging.basicConfig(format=log_format, level=level)
    if level >= logging.INFO:
        for name in _QUIET:
            logging.getLogger(name).setLevel(level)
