"""Steps and losses as scripts print them."""

import pytest

from clary.base.errors import ContractError
from clary.control.rehearsal.readings import make_reader


@pytest.mark.parametrize(
    ("line", "step", "epoch", "loss"),
    [
        ("step 12 loss 0.31", 12, None, 0.31),
        ("{'loss': 0.31, 'step': 12}", 12, None, 0.31),
        ('{"step": 12, "train_loss": 3.1e-1}', 12, None, 0.31),
        ("Epoch [3/10], Step [100/600], Loss: 0.31", 100, 3, 0.31),
        ("Epoch 1 of 3, Step 12: Loss: 0.31", 12, 1, 0.31),
        ("{'loss': 0.31, 'grad_norm': 1.2, 'epoch': 0.05}", 0.05, None, 0.31),
        ("iter 7: loss=.5 time 3ms", 7, None, 0.5),
        ("global_step=7 step=1 loss=-2", 7, None, -2.0),
        ("epoch 2: val_loss 9, loss 0.5", 2, None, 0.5),
        ("step=4 eval loss 3", 4, None, None),
        ("saved step 15", 15, None, None),
    ],
)
def test_common_forms_are_parsed(line, step, epoch, loss):
    reading = make_reader([]).read(line)
    assert (reading.step, reading.epoch, reading.loss) == (step, epoch, loss)


@pytest.mark.parametrize("line", ["", "loss 0.3", "steps: 100", "max_steps=100", "footstep", "step", "stepwise 3"])
def test_lines_without_a_step_give_no_reading(line):
    assert make_reader([]).read(line) is None


def test_metric_definitions_are_used_first_and_common_forms_only_without_a_match():
    definitions = [{"Name": "train_loss", "Regex": "L=([0-9.]+)"}, {"Name": "Step", "Regex": "S=([0-9]+)"}]
    reader = make_reader(definitions)
    assert (reader.read("S=4 step 9 L=0.5 loss 7").step, reader.read("S=4 L=0.5 loss 7").loss) == (4, 0.5)
    assert (reader.read("step 9 loss 7").step, reader.read("step 9 loss 7").loss) == (9, 7)


def test_expressions_of_the_command_line_replace_all_others():
    reader = make_reader([], step_regex=r"at (\d+)", loss_regex=r"= (\S+)")
    assert reader.read("step 3 loss 1") is None
    assert (reader.read("at 5 = 0.25").step, reader.read("at 5 = 0.25").loss) == (5, 0.25)
    assert reader.read("at 5 = nothing").loss is None


@pytest.mark.parametrize(("regex", "why"), [("(", "is not a regular expression"), ("step", "has no group")])
def test_an_invalid_expression_is_refused(regex, why):
    with pytest.raises(ContractError, match=why):
        make_reader([], step_regex=regex)
