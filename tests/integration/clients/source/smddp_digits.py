"""Digits to train on, drawn by this module instead of downloaded."""

import torch
from torch.utils.data import TensorDataset


def digits(number, generator):
    """Draw digits as seven segments on 12 x 10 pixels, with noise."""
    shapes = [
        0b1110111,
        0b0100100,
        0b1011101,
        0b1101101,
        0b0101110,
        0b1101011,
        0b1111011,
        0b0100101,
        0b1111111,
        0b1101111,
    ]
    # rows and columns of the segments: top, upper left, upper right, middle, lower left, lower right, bottom
    segments = [(1, 2, 2, 8), (2, 6, 1, 2), (2, 6, 8, 9), (5, 6, 2, 8), (6, 10, 1, 2), (6, 10, 8, 9), (10, 11, 2, 8)]
    labels = torch.randint(0, 10, (number,), generator=generator)
    images = torch.randn(number, 1, 12, 10, generator=generator) * 0.3
    for image, label in zip(images, labels, strict=True):
        for index, (top, bottom, left, right) in enumerate(segments):
            if shapes[label] >> index & 1:
                image[0, top:bottom, left:right] += 1.0
    return TensorDataset(images, labels)
