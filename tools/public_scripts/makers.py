"""Makes the small random data that scripts read, in the form in which they read them.

Run by the interpreter of the script's environment, so that it may import what that has:

    PYTHON tools/public_scripts/makers.py NAME FOLDER
"""

from __future__ import annotations

import gzip
import json
import random
import struct
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

SEED = 7
NUM_IMAGES, NUM_TEST_IMAGES, SIDE, NUM_CLASSES = 256, 128, 28, 10
NUM_MANY, NUM_RANKS, SMALL = 768, 8, 6
NUM_LINES, SEQUENCE, NUM_TOKENS, MASKED = 32, 64, 512, 8
_IDX_LABELS, _IDX_IMAGES = 0x801, 0x803


def none(folder: Path) -> None:
    """Write a file, since a channel must hold something."""
    (folder / "nothing.txt").write_text("this script makes its own data\n", encoding="utf-8")


def mnist(folder: Path) -> None:
    """Write the four files of MNIST where torchvision looks for them, unpacked: each class lights a row of its own."""
    raw = folder / "MNIST/raw"
    raw.mkdir(parents=True)
    for name, content in _idx(NUM_IMAGES).items():
        (raw / name).write_bytes(content)


def mnist_gz(folder: Path) -> None:
    """Write the four files of MNIST, zipped."""
    for name, content in _idx(NUM_MANY).items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(content))


def linear(folder: Path) -> None:
    """Write points and their values of a linear function, as text, to train on and to evaluate on."""
    drawn = random.Random(SEED)
    for part in ("train", "eval"):
        points = [(drawn.random(), drawn.random()) for _ in range(NUM_LINES)]
        lines = [f"{first:.6f} {second:.6f}\n" for first, second in points]
        (folder / f"{part}_data.txt").write_text("".join(lines), encoding="utf-8")
        labels = "".join(f"{first + 2 * second:.6f}\n" for first, second in points)
        (folder / f"{part}_label.txt").write_text(labels, encoding="utf-8")


def mnist_folders(folder: Path) -> None:
    """Write MNIST as scripts for MXNet read it: images.gz and labels.gz in train and test."""
    for name, content in _idx(NUM_MANY).items():
        place = folder / ("train" if name.startswith("train") else "test")
        place.mkdir(exist_ok=True)
        (place / f"{name.split('-')[1]}.gz").write_bytes(gzip.compress(content))


def mnist_train_gz(folder: Path) -> None:
    """Write images.gz and labels.gz to train on."""
    _gz(folder, "train")


def mnist_test_gz(folder: Path) -> None:
    """Write images.gz and labels.gz to test on."""
    _gz(folder, "t10k")


def _gz(folder: Path, kind: str) -> None:
    for name, content in _idx(NUM_MANY).items():
        if name.startswith(kind):
            (folder / f"{name.split('-')[1]}.gz").write_bytes(gzip.compress(content))


def mnist_zip(folder: Path) -> None:
    """Write MNIST's files as data-RANK/mnist.zip, which Horovod's examples for MXNet then do not download."""
    content = _idx(NUM_MANY)
    for rank in range(NUM_RANKS):
        (folder / f"data-{rank}").mkdir()
        with zipfile.ZipFile(folder / f"data-{rank}/mnist.zip", "w", zipfile.ZIP_DEFLATED) as file:
            for name, one in content.items():
                file.writestr(name, one)


def mnist_npy(folder: Path) -> None:
    """Write MNIST's arrays, scaled to 1, in train and test."""
    import numpy as np

    for name, array in _arrays(SIDE).items():
        place = folder / name.partition("_")[2]
        place.mkdir(exist_ok=True)
        np.save(place / f"{name}.npy", array / np.float32(255) if name.startswith("x") else array)


def mnist_data(folder: Path) -> None:
    """Write MNIST's arrays as train_data.npy, train_labels.npy and the same for eval, an image a row."""
    import numpy as np

    words = {"x": "data", "y": "labels", "train": "train", "test": "eval"}
    for name, array in _arrays(SIDE).items():
        kind, _, group = name.partition("_")
        np.save(folder / f"{words[group]}_{words[kind]}.npy", array.reshape(len(array), -1) if kind == "x" else array)


def keras_mnist(folder: Path) -> None:
    """Write mnist.npz where Keras looks for it in a home folder, under the names that scripts give each rank's copy."""
    _keras(folder, SIDE)


def keras_mnist_small(folder: Path) -> None:
    """Write the same of six by six pixels, for scripts that take thousands of steps."""
    _keras(folder, SMALL)


def _keras(folder: Path, side: int) -> None:
    import numpy as np

    place = folder / ".keras/datasets"
    place.mkdir(parents=True)
    arrays = _arrays(side)
    forms = ("mnist-{}.npz", "MNIST-data-{}")
    for name in ("mnist.npz", *(form.format(rank) for form in forms for rank in range(NUM_RANKS))):
        with (place / name).open("wb") as file:
            np.savez_compressed(file, **arrays)


def _arrays(side: int) -> dict[str, Any]:
    import numpy as np

    found = {}
    for name, content in _idx(NUM_MANY).items():
        group = "train" if name.startswith("train") else "test"
        if "labels" in name:
            found[f"y_{group}"] = np.frombuffer(content, np.uint8, offset=8)
        else:
            images = np.frombuffer(content, np.uint8, offset=16).reshape(-1, SIDE, SIDE)
            step = SIDE // side
            found[f"x_{group}"] = np.ascontiguousarray(images[:, : step * side : step, : step * side : step])
    return found


def _idx(num_train: int) -> dict[str, bytes]:
    drawn = random.Random(SEED)
    files = {}
    for kind, number in (("train", num_train), ("t10k", NUM_TEST_IMAGES)):
        labels = bytes(drawn.randrange(NUM_CLASSES) for _ in range(number))
        images = b"".join(_image(label, drawn) for label in labels)
        files[f"{kind}-labels-idx1-ubyte"] = struct.pack(">II", _IDX_LABELS, number) + labels
        files[f"{kind}-images-idx3-ubyte"] = struct.pack(">IIII", _IDX_IMAGES, number, SIDE, SIDE) + images
    return files


def _image(label: int, drawn: random.Random) -> bytes:
    rows = [bytes([255 if row // 2 == label + 2 else drawn.randrange(40) for _ in range(SIDE)]) for row in range(SIDE)]
    return b"".join(rows)


def tokens(folder: Path) -> None:
    """Write lines of token ids, zipped, as the GPT scripts read them: a file to train on and one to test on."""
    drawn = random.Random(SEED)
    for name in ("part_training.json.gz", "part_testing.json.gz"):
        with gzip.open(folder / name, "wt", encoding="utf-8") as file:
            for _ in range(NUM_LINES):
                ids = [drawn.randrange(NUM_TOKENS) for _ in range(SEQUENCE)]
                file.write(json.dumps({"input_ids": ids, "attention_mask": [1] * SEQUENCE}) + "\n")


def gptj(folder: Path) -> None:
    """Write tokens, and a GPT-J's configuration for scripts that take it from a model by its name."""
    tokens(folder)
    sizes = {"vocab_size": NUM_TOKENS, "n_positions": SEQUENCE, "n_embd": 64, "n_layer": 2, "n_head": 4}
    told = {"model_type": "gptj", "rotary_dim": 8, "use_cache": False, "architectures": ["GPTJForCausalLM"], **sizes}
    (folder / "gptj").mkdir()
    (folder / "gptj/config.json").write_text(json.dumps(told), encoding="utf-8")


def wiki(folder: Path) -> None:
    """Write one HDF5 file in the form of BERT's pretraining data, which needs h5py."""
    import h5py  # type: ignore[import-not-found]

    drawn = random.Random(SEED)
    widths = {"input_ids": SEQUENCE, "input_mask": SEQUENCE, "segment_ids": SEQUENCE}
    widths |= {"masked_lm_positions": MASKED, "masked_lm_ids": MASKED}
    with h5py.File(folder / "part_training.h5", "w") as file:
        for name, width in widths.items():
            top = 2 if name in ("input_mask", "segment_ids") else SEQUENCE
            file[name] = [[drawn.randrange(top) for _ in range(width)] for _ in range(NUM_LINES)]
        file["next_sentence_labels"] = [drawn.randrange(2) for _ in range(NUM_LINES)]


def text(folder: Path) -> None:
    """Write lines of text to train and to validate on, and a tokenizer of GPT-2's kind that knows single bytes."""
    drawn = random.Random(SEED)
    for name in ("train.txt", "validation.txt"):
        lines = ["".join(drawn.choice("abcdefgh ") for _ in range(SEQUENCE)) for _ in range(NUM_LINES)]
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    tokenizer = folder / "tokenizer"
    tokenizer.mkdir()
    # Printable bytes stand for themselves in GPT-2's vocabulary, all others for letters from U+0100 on.
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = [*map(chr, printable), *(chr(256 + number) for number in range(len(others)))]
    ids = {letter: number for number, letter in enumerate([*letters, "<|endoftext|>"])}
    (tokenizer / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
    (tokenizer / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
    (tokenizer / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}', encoding="utf-8")


def masked_text(folder: Path) -> None:
    """Write lines of text, and a tokenizer of BERT's kind that knows single letters."""
    text(folder)
    tokenizer = folder / "tokenizer"
    for name in ("vocab.json", "merges.txt"):
        (tokenizer / name).unlink()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh", *(f"##{letter}" for letter in "abcdefgh")]
    (tokenizer / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    (tokenizer / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}', encoding="utf-8")


MAKERS: dict[str, Callable[[Path], None]] = {
    "none": none,
    "mnist": mnist,
    "mnist_gz": mnist_gz,
    "mnist_folders": mnist_folders,
    "mnist_train_gz": mnist_train_gz,
    "mnist_test_gz": mnist_test_gz,
    "mnist_zip": mnist_zip,
    "linear": linear,
    "mnist_npy": mnist_npy,
    "mnist_data": mnist_data,
    "keras_mnist": keras_mnist,
    "keras_mnist_small": keras_mnist_small,
    "tokens": tokens,
    "gptj": gptj,
    "wiki": wiki,
    "text": text,
    "masked_text": masked_text,
}

if __name__ == "__main__":
    MAKERS[sys.argv[1]](Path(sys.argv[2]))
