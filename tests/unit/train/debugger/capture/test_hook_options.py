"""A hook's options for saving, which work without torch."""

from typing import Any

import pytest

from clary.train.debugger import Collection, SaveConfig, modes
from clary.train.debugger.capture.choosing import Wanted
from clary.train.debugger.capture.hook_options import HookOptions
from clary.train.debugger.errors import ConfigurationError

VALUES = Wanted(raw=True, reductions=())


def options(**given: Any) -> HookOptions:
    defaults: dict[str, Any] = {
        "out_dir": None,
        "dry_run": False,
        "reduction_config": None,
        "save_config": None,
        "include_regex": None,
        "include_collections": None,
        "save_all": False,
        "include_workers": "one",
    }
    return HookOptions(**defaults | given)


def chosen(asked: HookOptions, name: str, step: int = 0) -> Wanted | None:
    chooser = asked.make_chooser({})
    return chooser.wants(chooser.at(modes.GLOBAL, step), name)


def test_by_default_only_losses_are_saved_in_the_job_s_own_folder() -> None:
    asked = options()
    assert asked.out_dir == "/opt/ml/output/tensors"
    assert chosen(asked, "CrossEntropyLoss_output_0") == VALUES
    assert chosen(asked, "Net_fc.weight") is None


def test_tensors_that_match_the_hook_s_expression_or_collections_are_saved() -> None:
    asked = options(include_regex="relu", include_collections="biases")
    assert asked.include_collections == {"default", "biases"}
    assert chosen(asked, "relu_output_0") == chosen(asked, "Net_fc.bias") == VALUES
    assert chosen(asked, "Net_fc.weight") is None
    assert chosen(options(save_all=True), "Net_fc.weight") == VALUES


def test_a_change_of_options_is_marked_until_tensors_are_chosen_again() -> None:
    asked = options()
    assert asked.has_changed
    changes = [
        lambda: asked.get_collection("weights"),
        asked.get_collections,
        lambda: asked.add_collection(Collection("mine", "^fc")),
        lambda: asked.add_tensor_name("own", ["mine"]),
    ]
    for change in changes:
        asked.make_chooser({})
        assert not asked.has_changed
        change()
        assert asked.has_changed
    assert chosen(asked, "fc_output_0") == chosen(asked, "own") == VALUES


def test_adding_a_tensor_to_its_own_collections_changes_nothing() -> None:
    asked = options()
    assert asked.add_tensor_name("own", ["default", "mine"])
    assert chosen(asked, "own") == VALUES
    assert not asked.add_tensor_name("own", ["default", "mine"])
    assert not asked.has_changed
    assert asked.add_tensor_name("own", ["default", "other"])


def test_a_requested_collection_has_its_own_steps() -> None:
    asked = options(save_config=SaveConfig(save_interval=2))
    asked.get_collection("losses").save_config.save_interval = 5
    asked.get_collection("weights")
    assert "weights" not in asked.include_collections, "whoever asks for one that is always there may only look"
    asked.get_collection("new").include("^fc")
    assert [step for step in range(11) if chosen(asked, "CrossEntropyLoss_output_0", step)] == [0, 5, 10]
    assert [step for step in range(5) if chosen(asked, "fc_output_0", step)] == [0, 2, 4]


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda: options(include_workers="two"), "include_workers is 'two'"),
        (lambda: options(include_regex="["), "is no regular expression"),
        (lambda: options().set_mode("TRAIN"), "mode is 'TRAIN'; expected one of"),
        (lambda: options().add_collection("weights"), "was given a str; expected a Collection"),
    ],
)
def test_invalid_options_are_refused_with_the_expected_values(ask: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words.replace("[", r"\[")):
        ask()
