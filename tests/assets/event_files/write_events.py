"""Script that wrote `torch.events.gz` and `tensor.events.gz` with TensorBoard's own writers.

    pip install tensorboard torch numpy && python write_events.py FOLDER

`torch` holds records as torch.utils.tensorboard writes them: HistogramProto and Image. `tensor` holds records as
TensorFlow 2 writes them: tensors of a plugin, made by TensorBoard's summary functions.
"""

import gzip
import sys
from pathlib import Path

import numpy as np
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.histogram import summary_v2
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from torch.utils.tensorboard import SummaryWriter

STEPS = 24
EVERY = 50  # steps between two records


def weights_of(step, random):
    """Return weights in two clusters that move apart, away from zero, with the step."""
    share = step / STEPS
    left, right = random.normal(-share, 0.08 + 0.15 * share, 600), random.normal(share, 0.08 + 0.2 * share, 400)
    return np.concatenate([left, right])


def picture_of(step, random):
    """Return a picture of a ring whose noise fades with the step."""
    rows, columns = np.mgrid[0:28, 0:28] - 13.5
    ring = np.exp(-((np.hypot(rows, columns) - 8) ** 2) / 4)
    noise = random.random((28, 28)) * (1 - step / STEPS)
    return np.clip(np.stack([ring + noise, ring * 0.5 + noise, noise]), 0, 1)


def write_torch(folder):
    random = np.random.default_rng(7)
    with SummaryWriter(folder) as writer:
        for step in range(STEPS):
            at = step * EVERY
            writer.add_scalar("train/loss", 1 / (1 + step), at)
            writer.add_histogram("weights/layer 1", weights_of(step, random), at)
            writer.add_histogram("gradients", random.standard_t(3, 500) * 0.01, at, bins="auto")
            if step % 3 == 0:
                writer.add_image("samples/ring", picture_of(step, random), at)
        writer.add_image("figure", np.tile(picture_of(STEPS, random), (1, 6, 10)), STEPS * EVERY)


def write_tensors(folder):
    random = np.random.default_rng(8)
    writer = EventFileWriter(folder)
    for step in range(STEPS):
        values = [summary_v2.histogram_pb("weights/layer 1", weights_of(step, random), buckets=30).value[0]]
        if step:
            values[0].ClearField("metadata")  # a writer names the plugin of a tag only in the tag's first record
        writer.add_event(Event(wall_time=1_700_000_000 + step, step=step * EVERY, summary=Summary(value=values)))
    writer.close()


def main(folder):
    for name, write in (("torch", write_torch), ("tensor", write_tensors)):
        place = folder / name
        write(str(place))
        (written,) = place.iterdir()
        (folder / f"{name}.events.gz").write_bytes(gzip.compress(written.read_bytes(), mtime=0))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
