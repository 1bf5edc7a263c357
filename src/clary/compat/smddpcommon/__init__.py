"""A module of AWS's SMDDP that its scripts for measuring import: it sets the size of the buckets of gradients.

Clary's collectives choose their buckets by themselves. An installed package of this name replaces this one.
"""

import sys

from clary_toolkit.giving_way import has_given_way

has_given_way(__name__, __file__)


def setBucketSize(num_bytes: int) -> None:
    """Say that the size has no effect; no bucket changes."""
    print(
        f"clary: smddpcommon.setBucketSize({num_bytes}) has no effect: the collectives choose their buckets' sizes",
        file=sys.stderr,
        flush=True,
    )
