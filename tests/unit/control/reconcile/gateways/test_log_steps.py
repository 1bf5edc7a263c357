"""The step that a log line names."""

import time

import pytest

from clary.control.reconcile.gateways.log_steps import step_of


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ("step 12/120 loss=0.5", 12),
        ("{'loss': 0.5, 'step': 300}", 300),
        ("Iteration [40] loss 0.5", 40),
        ("train_step=7 loss=0.5", 7),
        ("Epoch 2, global_step: 900, loss 0.5", 900),
        ("Epoch 2, step 30, loss 0.5", None),  # the step may restart at 0 with each epoch
        ("loss=0.5 steps_per_s=12", None),
        ("step 0.5 s, loss=1", None),
        ("footstep 3 loss=1", None),
        ("loss=0.5", None),
        ("step " + "9" * 400, None),
    ],
)
def test_the_step_of_a_line_is_found(line, step):
    assert step_of(line) == step


@pytest.mark.parametrize("line", ["step" + " " * 100_000, "step " * 20_000, "step['\" \t" * 20_000])
def test_a_hostile_line_is_parsed_quickly(line):
    before = time.monotonic()
    step_of(line)
    assert time.monotonic() - before < 1
