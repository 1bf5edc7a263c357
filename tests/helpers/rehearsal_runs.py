"""Runs as a rehearsal collects them: the output and the records of a program, attempt by attempt."""

import json

from clary.control.rehearsal.certificate import Run
from clary.control.rehearsal.history import Attempt
from clary.control.rehearsal.readings import make_reader
from clary.control.rehearsal.recordings import read_record

BATCH = 4
NUM_STEPS = 24
NUM_SAMPLES = 48
READER = make_reader([])


def batch_of(step):
    """Return the samples of a step of a program that restores its position in the data; steps count from 1."""
    begin = (step - 1) * BATCH % NUM_SAMPLES
    return list(range(begin, begin + BATCH))


def loss_of(step):
    return 1 / (step + 1)


def attempt(number, first, last, *, loss=loss_of, batch=batch_of, end="", restored=1, sets=3, skipped=0, every=1):
    """Return an attempt that ran the steps `first` to `last`; `skipped` batches are drawn before and not used."""
    lines, events = [], [{"e": "begin", "rank": "0"}]
    events += [{"e": "batch", "i": batch(step)} for step in range(first - skipped, first)]
    for step in range(first, last + 1):
        events += [{"e": "batch", "i": batch(step)}, {"e": "step", "o": 0}]
        if step % every == 0:
            lines.append(f"step {step} loss {loss(step):.6f}")
            events.append({"e": "line", "s": lines[-1]})
    record = read_record("\n".join(map(json.dumps, events)), READER)
    return Attempt(
        number=number,
        readings=tuple(READER.read_all(lines)),
        records=(record,) if record is not None else (),
        end=end,
        restored_files=0 if number == 1 else restored,
        stored_sets=sets,
    )


def run(*attempts, name="rehearsal", status="Completed", **facts):
    return Run(name=name, status=status, attempts=attempts, **{"wall_s": 10.0, **facts})


def twin(**options):
    return run(attempt(1, 1, NUM_STEPS, **options), name="twin", wall_s=8.0)
