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
from collections.abc import Callable
from pathlib import Path

SEED = 7
NUM_IMAGES, NUM_TEST_IMAGES, SIDE, NUM_CLASSES = 256, 64, 28, 10
NUM_LINES, SEQUENCE, NUM_TOKENS, MASKED = 32, 64, 512, 8
_IDX_LABELS, _IDX_IMAGES = 0x801, 0x803


def none(folder: Path) -> None:
    """Write a file, since a channel must hold something."""
    (folder / "nothing.txt").write_text("this script makes its own data\n", encoding="utf-8")


def mnist(folder: Path) -> None:
    """Write the four files of MNIST where torchvision looks for them, unpacked: each class lights a row of its own."""
    raw = folder / "MNIST/raw"
    raw.mkdir(parents=True)
    drawn = random.Random(SEED)
    for kind, number in (("train", NUM_IMAGES), ("t10k", NUM_TEST_IMAGES)):
        labels = bytes(drawn.randrange(NUM_CLASSES) for _ in range(number))
        images = b"".join(_image(label, drawn) for label in labels)
        (raw / f"{kind}-labels-idx1-ubyte").write_bytes(struct.pack(">II", _IDX_LABELS, number) + labels)
        (raw / f"{kind}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", _IDX_IMAGES, number, SIDE, SIDE) + images)


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
    "tokens": tokens,
    "gptj": gptj,
    "wiki": wiki,
    "text": text,
    "masked_text": masked_text,
}

if __name__ == "__main__":
    MAKERS[sys.argv[1]](Path(sys.argv[2]))
