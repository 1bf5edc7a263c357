"""Gives MXNet's MNIST random pictures: the SDK's training script downloads it, and these tests have no internet.

Copied into the environment that stands for the MXNet image, where a `.pth` file imports it. The set has the size and
the types of the real one, so a job takes as long and its profiler sees the same steps.
"""

import mxnet  # of the environment that this file is copied to
import numpy as np
from mxnet.gluon.data.vision import datasets

_PICTURES = {True: 60_000, False: 10_000}


def _make_pictures(dataset: datasets.MNIST) -> None:
    """Set a dataset's pictures and labels."""
    count = _PICTURES[dataset._train]
    random = np.random.RandomState(0)
    dataset._data = mxnet.nd.array(random.randint(0, 256, (count, 28, 28, 1)), dtype=np.uint8)
    dataset._label = random.randint(0, 10, count).astype(np.int32)


datasets.MNIST._get_data = _make_pictures
