"""Which models are compiled or run under autocast, and the reasons."""

from dataclasses import replace

import pytest

from clary.train.compilation.policies import (
    MAX_GRAPHS,
    MAX_MODELS,
    CompilerFacts,
    ModelFacts,
    PrecisionFacts,
    judge_compilation,
    judge_first_call,
    judge_precision,
)
from clary.train.compilation.wishes import Wishes, read_wishes

CPU = frozenset({"cpu"})
MODEL = ModelFacts(name="Net", num_trainable=4, device_types=CPU)
READY = CompilerFacts()


def test_a_plain_model_is_compiled_and_one_without_trainable_parameters_is_ignored() -> None:
    assert judge_compilation(MODEL, READY).applies
    nothing = judge_compilation(replace(MODEL, num_trainable=0), READY)
    assert (nothing.applies, nothing.reason) == (False, "")


@pytest.mark.parametrize(
    ("model", "compiler", "words"),
    [
        (replace(MODEL, compiled_by_program=True), READY, "has it compiled itself"),
        (replace(MODEL, is_scripted=True), READY, "TorchScript"),
        (replace(MODEL, wrapper="DeepSpeedEngine"), READY, "DeepSpeed"),
        (replace(MODEL, wrapper="DistributedModel"), READY, "smp cuts it"),
        (replace(MODEL, wrapper="DataParallel"), READY, "threads"),
        (replace(MODEL, wrapper="FullyShardedDataParallel"), READY, "use_orig_params=True"),
        (replace(MODEL, device_types=frozenset({"meta"})), READY, "kind meta"),
        (replace(MODEL, device_types=frozenset({"cpu", "cuda"})), READY, "several kinds of devices: cpu, cuda"),
        (MODEL, CompilerFacts(switched_off_by="TORCHDYNAMO_DISABLE"), "TORCHDYNAMO_DISABLE is set"),
        (MODEL, CompilerFacts(refusal="Python 3.15+ not yet supported"), "not yet supported"),
        (MODEL, CompilerFacts(missing=(("cpu", "C++ compiler (g++)"),)), "no C++ compiler (g++) on this host"),
        (MODEL, CompilerFacts(num_models=MAX_MODELS), "one by one"),
    ],
)
def test_each_reason_not_to_compile_is_given(model: ModelFacts, compiler: CompilerFacts, words: str) -> None:
    decision = judge_compilation(model, compiler)
    assert not decision.applies
    assert words in decision.reason


def test_a_missing_compiler_for_another_device_does_not_matter() -> None:
    assert judge_compilation(MODEL, CompilerFacts(missing=(("cuda", "triton"),))).applies
    sharded = replace(MODEL, wrapper="FullyShardedDataParallel", shows_parameters=True)
    assert judge_compilation(sharded, READY).applies


def test_a_model_stays_compiled_unless_no_part_was_compiled_or_there_are_too_many_parts() -> None:
    assert judge_first_call(num_graphs=1, num_compiled=1, failure="").applies
    half = judge_first_call(num_graphs=2, num_compiled=1, failure="no such operator")
    assert (half.applies, half.reason) == (True, "no such operator")
    for graphs, compiled, failure, words in (
        (0, 0, "", "found nothing"),
        (1, 0, "no such operator", "no such operator"),
        (MAX_GRAPHS + 1, MAX_GRAPHS + 1, "", f"{MAX_GRAPHS + 1} graphs"),
    ):
        decision = judge_first_call(num_graphs=graphs, num_compiled=compiled, failure=failure)
        assert not decision.applies
        assert words in decision.reason


def test_autocast_uses_bfloat16_if_the_device_supports_it() -> None:
    decision = judge_precision(MODEL, PrecisionFacts(program_autocasts=False, has_bfloat16=True))
    assert (decision.applies, decision.dtype, decision.reason) == (True, "bfloat16", "")
    slow = judge_precision(MODEL, PrecisionFacts(program_autocasts=False, has_bfloat16=True, is_emulated=True))
    assert (slow.applies, slow.dtype) == (True, "bfloat16"), "it was asked for"
    assert "no instructions for bfloat16" in slow.reason
    on_gpu = replace(MODEL, device_types=frozenset({"cuda"}))
    decision = judge_precision(on_gpu, PrecisionFacts(program_autocasts=False, has_bfloat16=False))
    assert (decision.applies, decision.dtype) == (True, "float16")
    assert "GradScaler" in decision.reason


def test_autocast_is_not_applied_over_the_program_s_own_choice() -> None:
    assert "itself" in judge_precision(MODEL, PrecisionFacts(program_autocasts=True, has_bfloat16=True)).reason
    plain = PrecisionFacts(program_autocasts=False, has_bfloat16=True)
    halves = judge_precision(replace(MODEL, dtypes=frozenset({"bfloat16"})), plain)
    assert halves.reason == "its parameters are bfloat16 already"
    assert judge_precision(replace(MODEL, dtypes=frozenset({"bfloat16", "float32"})), plain).applies
    assert not judge_precision(replace(MODEL, device_types=frozenset({"meta"})), plain).applies
    assert judge_precision(replace(MODEL, num_trainable=0), plain).reason == ""


def test_options_are_read_from_the_environment() -> None:
    assert read_wishes({}) == Wishes()
    assert not read_wishes({"CLARY_COMPILE": "0", "CLARY_AMP": ""}).any
    found = read_wishes({"CLARY_COMPILE": "1", "CLARY_COMPILE_DEBUG": "/x", "TORCHDYNAMO_DISABLE": "1"})
    assert found == Wishes(compiles=True, debug_folder="/x", switched_off_by="TORCHDYNAMO_DISABLE")
    assert read_wishes({"CLARY_AMP": "1", "CLARY_COMPILE_DEBUG": "/x"}) == Wishes(mixes_precision=True)
