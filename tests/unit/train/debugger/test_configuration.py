"""The choice of tensors and steps to save: by programs, and by a job's configuration."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from clary.train.debugger.automatic import install_from_config
from clary.train.debugger.capture.choosing import Chooser, Wanted, needs_modules
from clary.train.debugger.collection import Collection, CollectionManager
from clary.train.debugger.configuration import configuration_path, parse_configuration, read_configuration
from clary.train.debugger.errors import ConfigurationError
from clary.train.debugger.modes import ModeKeys
from clary.train.debugger.reduction_config import ReductionConfig
from clary.train.debugger.save_config import SaveConfig, SaveConfigMode


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, [0, 500]),
        ({"save_interval": 250}, [0, 250, 500, 750]),
        ({"save_interval": 100, "end_step": 200}, [0, 100]),
        ({"save_interval": 100, "end_step": 201}, [0, 100, 200]),
        ({"save_interval": 250, "start_step": 300}, [500, 750]),
        ({"save_steps": [3, 7]}, [0, 3, 7, 500]),
        ({"end_step": 0}, []),
    ],
)
def test_steps_equal_those_of_smdebug_s_examples(given: dict[str, Any], expected: list[int]) -> None:
    config = SaveConfig(**given)
    assert [step for step in range(900) if config.should_save_step(ModeKeys.TRAIN, step)] == expected


def test_a_phase_may_have_its_own_steps() -> None:
    config = SaveConfig({ModeKeys.EVAL: SaveConfigMode(save_interval=2)})
    assert config.should_save_step(ModeKeys.EVAL, 2)
    assert not config.should_save_step(ModeKeys.TRAIN, 2)
    config.end_step = 0
    assert not any(config.should_save_step(mode, 0) for mode in ModeKeys)
    with pytest.raises(AttributeError, match="it has save_interval"):
        config.interval = 3


def test_invalid_values_are_refused_by_name() -> None:
    for call, words in (
        (lambda: SaveConfig(save_interval=0), "save_interval is 0; expected a whole number of steps, 1 or more"),
        (lambda: SaveConfig(start_step=-1), "start_step is -1"),
        (lambda: SaveConfig({"TRAIN": SaveConfigMode()}), "mode_save_configs maps ModeKeys"),  # type: ignore[dict-item]
        (lambda: SaveConfig.parse(7), "save_config is a int"),
        (lambda: ReductionConfig(reductions=["median"]), "reductions has 'median'; it may have min, max"),
        (lambda: ReductionConfig(norms=["mean"]), "norms has 'mean'; it may have l1, l2"),
        (lambda: ReductionConfig(save_shape="perhaps"), "save_shape is 'perhaps'"),  # type: ignore[arg-type]
        (lambda: Collection("c", "("), "include_regex '\\(' is no regular expression"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            call()


def test_a_configuration_of_the_sdk_is_parsed(tmp_path: Path) -> None:
    document = {
        "S3OutputPath": "s3://bucket/prefix",
        "LocalPath": "/opt/ml/output/tensors",
        "HookParameters": {
            "save_interval": "100",
            "eval.save_interval": "7",
            "include_workers": "all",
            "include_regex": "relu, tanh",
            "save_all": "false",
        },
        "CollectionConfigurations": [
            {"CollectionName": "gradients"},
            {"CollectionName": "losses", "CollectionParameters": {"train.save_interval": "10", "save_steps": "1,3"}},
            {
                "CollectionName": "custom",
                "CollectionParameters": {
                    "include_regex": "^a,b$",
                    "reductions": "mean,abs_max,l2_norm,abs_l1",
                    "save_raw_tensor": "True",
                    "save_histogram": "false",
                },
            },
        ],
    }
    (tmp_path / "hook.json").write_text(json.dumps(document))
    found = read_configuration(configuration_path(tmp_path / "hook.json"))
    assert (found.out_dir, found.include_workers, found.save_all) == ("/opt/ml/output/tensors", "all", False)
    assert found.include_regex == ["relu", "tanh"]
    assert found.save_config.mode_save_configs[ModeKeys.EVAL].save_interval == 7
    gradients, losses, custom = found.collections
    assert gradients.save_config == found.save_config
    assert losses.save_config is not None
    assert losses.save_config.mode_save_configs[ModeKeys.TRAIN] == SaveConfigMode(save_interval=10, save_steps=[1, 3])
    assert losses.save_config.mode_save_configs[ModeKeys.EVAL] == SaveConfigMode(save_interval=7, save_steps=[1, 3])
    assert custom.include_regex == ["^a", "b$"]
    assert custom.reduction_config is not None
    assert custom.reduction_config.names == {"mean", "abs_max", "l2", "abs_l1"}
    assert custom.reduction_config.save_raw_tensor


def test_null_parts_count_as_absent() -> None:
    found = parse_configuration({"HookParameters": None, "CollectionConfigurations": None})
    assert found.collections == []
    parse_configuration({"CollectionConfigurations": [{"CollectionName": "weights", "CollectionParameters": None}]})


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ([], "the configuration is '\\[\\]'; expected an object"),
        ({"HookParameters": {"save_intervall": "1"}}, "HookParameters has 'save_intervall'; it may have"),
        ({"HookParameters": {"save_interval": "often"}}, "save_interval is 'often'"),
        ({"HookParameters": {"include_workers": "some"}}, "include_workers is 'some'"),
        ({"CollectionConfigurations": [{}]}, "has no CollectionName"),
        ({"CollectionConfigurations": ["weights"]}, "an item of CollectionConfigurations is 'weights'"),
        (
            {"CollectionConfigurations": [{"CollectionName": "c", "CollectionParameters": {"reductions": "median"}}]},
            "reductions has 'median'",
        ),
    ],
)
def test_an_invalid_configuration_is_refused_with_the_reason(document: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        parse_configuration(document)


def test_a_file_that_is_not_json_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hook.json").write_text("{")
    monkeypatch.setenv("SMDEBUG_CONFIG_FILE_PATH", str(tmp_path / "hook.json"))
    with pytest.raises(ConfigurationError, match=r"hook\.json is not JSON"):
        read_configuration(configuration_path())


def test_no_hook_is_prepared_without_a_configuration_or_if_it_is_switched_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMDEBUG_CONFIG_FILE_PATH", str(tmp_path / "hook.json"))
    before = list(sys.meta_path)
    assert not install_from_config()
    (tmp_path / "hook.json").write_text("{}")
    monkeypatch.setenv("USE_SMDEBUG", "0")
    assert not install_from_config()
    assert sys.meta_path == before
    monkeypatch.delenv("USE_SMDEBUG")
    monkeypatch.setattr(sys, "meta_path", list(before))
    assert install_from_config()
    assert install_from_config()
    assert sys.meta_path[1:] == before  # installed only once


def chooser(*included: str, save_all: bool = False, **collections: Any) -> Chooser:
    manager = CollectionManager()
    for name, changes in collections.items():
        for field, value in changes.items():
            setattr(manager.get(name), field, value)
    return Chooser(
        manager, included, save_all=save_all, save_config=SaveConfig(save_interval=10), reduction_config=None
    )


def test_losses_are_always_saved_and_other_collections_on_request() -> None:
    assert [one.name for one in chooser().at(ModeKeys.TRAIN, 0)] == ["losses"]
    assert [one.name for one in chooser("weights").at(ModeKeys.TRAIN, 20)] == ["weights", "losses"]
    assert chooser("weights").at(ModeKeys.TRAIN, 5) == []
    assert len(chooser(save_all=True).at(ModeKeys.TRAIN, 0)) == len(CollectionManager().collections)


def test_gradients_exist_only_in_training() -> None:
    chosen = chooser("gradients", "weights")
    assert [one.name for one in chosen.at(ModeKeys.EVAL, 0)] == ["weights", "losses"]
    assert [one.name for one in chosen.at(ModeKeys.GLOBAL, 0)] == ["weights", "gradients", "losses"]


@pytest.mark.parametrize(
    ("name", "collection"),
    [
        ("Net_fc.weight", "weights"),
        ("Net_fc.bias", "biases"),
        ("gradient/Net_fc.weight", "gradients"),
        ("gradient/Net_fc.bias", "gradients"),
        ("CrossEntropyLoss_output_0", "losses"),
        ("my_loss_output_0", "losses"),
        ("CrossEntropyLoss_input_0", None),
        ("optimizer/Net_fc.weight_exp_avg", "optimizer_variables"),
        ("scalar/lr", "metrics"),
        ("fc_output_0", None),
    ],
)
def test_default_collections_match_their_tensors_by_name(name: str, collection: str | None) -> None:
    found = [one.name for one in CollectionManager() if one.name != "all" and one.matches(name)]
    assert found == ([] if collection is None else [collection])


def test_a_tensor_of_two_collections_is_saved_as_both_request() -> None:
    chosen = chooser(
        "weights",
        "mine",
        weights={"reduction_config": ReductionConfig(reductions=["mean"])},
        mine={"include_regex": ["fc"], "reduction_config": ReductionConfig(abs_reductions=["max"])},
    )
    now = chosen.at(ModeKeys.TRAIN, 0)
    assert chosen.wants(now, "fc.weight") == Wanted(False, ("abs_max", "mean"))
    assert chosen.wants(now, "fc.bias") == Wanted(False, ("abs_max",))
    assert chosen.wants(now, "out.weight") == Wanted(False, ("mean",))
    assert chosen.wants(now, "out.bias") is None
    assert chosen.wants(now, "x_loss_output_0") == Wanted(True, ())


@pytest.mark.parametrize("save_shape", [True, False])
def test_save_shape_saves_neither_values_nor_reductions(save_shape: bool) -> None:
    chosen = chooser("weights", weights={"reduction_config": ReductionConfig(save_shape=save_shape)})
    assert chosen.wants(chosen.at(ModeKeys.TRAIN, 0), "fc.weight") == Wanted(False, ())


def test_modules_are_hooked_only_if_their_tensors_may_be_saved() -> None:
    assert not needs_modules(chooser("weights", "gradients", "optimizer_variables").at(ModeKeys.TRAIN, 0))
    assert needs_modules(chooser("mine", mine={"include_regex": ["relu"]}).at(ModeKeys.TRAIN, 0))
    assert needs_modules(chooser("weights", weights={"include_regex": ["weight", "relu"]}).at(ModeKeys.TRAIN, 0))
    assert needs_modules(chooser(save_all=True).at(ModeKeys.TRAIN, 0))
    assert needs_modules(chooser("mine", mine={"tensor_names": {"1_output_0"}}).at(ModeKeys.TRAIN, 0))
    assert needs_modules(chooser("losses", losses={"tensor_names": {"fc_input_12"}}).at(ModeKeys.TRAIN, 0))
    assert not needs_modules(chooser("mine", mine={"tensor_names": {"scalar/lr", "my_output"}}).at(ModeKeys.TRAIN, 0))
