"""Parsing of the records that programs write: batches, steps, and lines in their order."""

import json
from dataclasses import replace

from rehearsal_runs import READER, attempt, run, twin

from clary.control.rehearsal.certificate import certify
from clary.control.rehearsal.history import make_history, scale_of
from clary.control.rehearsal.recordings import batches_a_step, read_record, samples_of


def text_of(*events):
    return "\n".join(json.dumps(event) for event in events)


def batch(*numbers):
    return {"e": "batch", "i": list(numbers)}


STEP = {"e": "step", "o": 0}


def test_batches_belong_to_the_step_that_follows_them():
    record = read_record(text_of({"e": "begin", "rank": "3"}, batch(1, 2), STEP, batch(3), batch(4), STEP), READER)
    assert record.rank == 3
    assert record.drawn == (((1, 2),), ((3,), (4,)))


def test_gradient_accumulation_assigns_the_usual_number_of_batches_to_a_step():
    pair = (batch(1), batch(2), STEP)
    record = read_record(text_of(*pair, *pair, batch(9), *pair), READER)
    assert batches_a_step(record) == 2
    assert samples_of(record.drawn[2], 2) == (1, 2), "what was drawn before is nobody's"


def test_of_several_optimizers_the_one_with_most_steps_counts():
    other = {"e": "step", "o": 1}
    record = read_record(text_of(batch(1), STEP, other, batch(2), other), READER)
    assert record.num_steps == 2


def test_without_a_torch_optimizer_each_batch_is_a_step():
    record = read_record(text_of(batch(1), {"e": "line", "s": "step 1"}, batch(2)), READER)
    assert (record.num_steps, record.has_steps) == (2, False)
    assert [(reading.step, done) for reading, done in record.printed] == [(1, 1)]


def test_broken_lines_and_records_without_training_are_ignored():
    assert read_record("", READER) is None
    assert read_record(text_of({"e": "begin", "rank": "0"}), READER) is None
    broken = text_of(batch(1), STEP) + '\n[1]\nnull\n{"e": "batch", "i": [2'
    assert read_record(broken, READER).num_steps == 1


def test_samples_without_indices_are_not_recorded():
    record = read_record(text_of({"e": "batch", "i": None}, STEP), READER)
    assert not record.has_samples


def test_a_record_that_is_full_is_not_compared():
    record = read_record(text_of(batch(1), STEP, {"e": "full"}), READER)
    assert not record.is_whole


def test_a_program_whose_steps_restart_in_each_epoch_is_placed_by_epoch_and_step():
    def lines(first, last):
        return [f"epoch {step // 10} step {step % 10} loss {1 / (step + 1):.5f}" for step in range(first, last)]

    whole = attempt(1, 1, 0)
    of_twin = run(_with(whole, lines(0, 30)), name="twin")
    made = certify(of_twin, run(_with(whole, lines(0, 18)), _with(attempt(2, 1, 0), lines(15, 30))), ())
    assert made.verdict.value == "PASS"
    assert (made.interruptions[0].last_step, made.interruptions[0].first_step) == ("epoch 1, step 7", "epoch 1, step 5")
    assert made.steps_lost == 3


def _with(item, lines):
    return replace(item, readings=tuple(READER.read_all(lines)), records=())


def test_step_offsets_are_those_on_which_the_printed_steps_agree():
    first = twin().attempts[0]
    history = make_history([attempt(1, 1, 9), attempt(2, 6, 24)], scale_of(first.readings), first)
    assert history.samples.offsets == {1: 0, 2: 5}
    assert history.samples.agreement == 1.0
