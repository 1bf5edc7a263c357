"""SMDDP for TensorFlow (`import smdistributed.dataparallel.tensorflow as sdp`): not there yet, as the import says.

`clary.train.collective.adapters.tensorflow` is the seam; what its adapter can do gets its names here.
"""

from clary.train._native.errors import CollectiveError
from clary.train.collective.adapters import tensorflow as seam

try:
    seam.adapter()
except CollectiveError as error:
    raise ImportError(f"smdistributed.dataparallel.tensorflow: {error}") from error
