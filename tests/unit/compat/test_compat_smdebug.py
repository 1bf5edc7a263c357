"""smdebug's names, and the precedence of AWS's own package."""

import argparse
import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import clary
from clary.train.debugger import errors

COMPAT = Path(clary.__file__).parent / "compat"


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("", "CollectionKeys ReductionConfig SaveConfig SaveConfigMode modes __version__"),
        (".exceptions", "SMDebugError StepNotYetAvailable StepUnavailable TensorUnavailable TensorUnavailableForStep"),
        (".exceptions", "NoMoreData RuleEvaluationConditionMet MissingCollectionFiles"),
        (".trials", "Trial LocalTrial S3Trial create_trial"),
        (".trials.trial", "Trial"),
        (".trials.local_trial", "LocalTrial"),
        (".trials.s3_trial", "S3Trial"),
        (".trials.utils", "create_trial"),
        (".rules", "Rule RequiredTensors invoke_rule"),
        (".rules.rule", "Rule"),
        (".rules.rule_invoker", "invoke_rule"),
        (".analysis.utils", "no_refresh refresh"),
        (".core.modes", "ModeKeys"),
        (".core.collection", "Collection CollectionKeys"),
        (".core.reduction_config", "ReductionConfig"),
        (".core.save_config", "SaveConfig SaveConfigMode"),
    ],
)
def test_names_are_where_programs_look_for_them(module: str, names: str) -> None:
    found = importlib.import_module(f"clary.compat.smdebug{module}")
    assert all(hasattr(found, name) for name in names.split())


def test_errors_are_caught_by_smdebugs_names() -> None:
    from clary.compat.smdebug import exceptions

    assert set(exceptions.__all__) - {"modes"} <= set(dir(exceptions))
    for name in exceptions.__all__:
        value = getattr(exceptions, name)
        if isinstance(value, type) and issubclass(value, Exception):
            assert issubclass(value, exceptions.SMDebugError)
    assert issubclass(errors.ConfigurationError, ValueError)


@pytest.mark.parametrize("name", ["tensorflow", "mxnet", "xgboost"])
def test_other_frameworks_are_refused_by_name(name: str) -> None:
    with pytest.raises(ImportError, match=f"smdebug.{name}: only PyTorch is supported: use smdebug.pytorch"):
        importlib.import_module(f"clary.compat.smdebug.{name}")


@pytest.mark.parametrize("text", ["yes", "True", "t", "Y", "1", True])
def test_the_profilers_str2bool_reads_words_for_true(text: str | bool) -> None:
    assert str2bool()(text) is True


@pytest.mark.parametrize("text", ["no", "FALSE", "f", "n", "0", False])
def test_the_profilers_str2bool_reads_words_for_false(text: str | bool) -> None:
    assert str2bool()(text) is False


def test_the_profilers_str2bool_refuses_another_word_as_argparse_shows_it(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpu", type=str2bool(), default=True)
    assert parser.parse_args(["--gpu", "no"]).gpu is False
    with pytest.raises(SystemExit):
        parser.parse_args(["--gpu", "perhaps"])
    assert "argument --gpu: 'perhaps' is no truth value; expected yes or no, true or false" in capsys.readouterr().err


@pytest.mark.parametrize(
    "module",
    ["analysis", "analysis.notebook_utils.training_job", "algorithm_metrics_reader", "system_metrics_reader"],
)
def test_the_profilers_readers_are_refused_with_the_name_of_the_report(module: str) -> None:
    with pytest.raises(ImportError, match="use clary profile-report JOB"):
        importlib.import_module(f"clary.compat.smdebug.profiler.{module}")


@pytest.mark.parametrize("module", ["profiler", "profiler.utils"])
def test_other_names_of_the_profiler_are_refused_with_the_name_of_the_report(module: str) -> None:
    found = importlib.import_module(f"clary.compat.smdebug.{module}")
    with pytest.raises(ImportError, match="TimeUnits: the readers of profiles are missing: use clary profile-report"):
        exec(f"from clary.compat.smdebug.{module} import TimeUnits")
    assert not hasattr(found, "__wrapped__")


def str2bool() -> Any:
    return importlib.import_module("clary.compat.smdebug.profiler.utils").str2bool


def imported_version(*places: Path) -> str:
    program = "import smdebug; from smdebug import trials; print(smdebug.__version__, trials.__name__)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
        env={**os.environ, "PYTHONPATH": ":".join(map(str, places))},
    )
    return done.stdout.strip()


def test_aws_own_smdebug_takes_precedence_over_ours(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    (ours / "smdebug").symlink_to(COMPAT / "smdebug")
    (theirs / "smdebug").mkdir(parents=True)
    (theirs / "smdebug" / "__init__.py").write_text("__version__ = 'FakeAws'\n")
    (theirs / "smdebug" / "trials.py").touch()
    source = COMPAT.parent.parent
    assert imported_version(ours, source) == "1.0.34 smdebug.trials"
    assert imported_version(ours, theirs, source) == "FakeAws smdebug.trials"
