"""Stand-ins for apex, flash_attn and Transformer Engine in rehearsals: imports work, and numbers are right."""

import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = Path(__file__).with_name("stand_ins_program.py")
LIMIT_S = 150

pytestmark = [pytest.mark.timeout(LIMIT_S + 30), pytest.mark.needs("train")]


@pytest.fixture(scope="module")
def told():
    done = subprocess.run(
        [str(ROOT / ".venvs/train/bin/python"), str(PROGRAM)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_imports_find_stand_ins_for_libraries_that_need_a_gpu(told):
    assert told["before"] == "ModuleNotFoundError"


def test_availability_checks_do_not_find_the_stand_ins(told):
    assert told["asked"] == [False, False, False]


def test_norms_and_scaled_copies_are_as_apex_has_them(told):
    assert told["norm"] == [5.0]
    assert told["each"] == [3.0, 4.0]
    assert told["none"] is None
    assert told["halves"] == [[1.5, 0.0], [2.0]]
    assert told["overflow"] == [0, 1]


def test_a_checkpoint_of_transformer_engine_trains_as_the_function_does(told):
    assert told["gradient"] == [4.0, 4.0, 4.0]
    assert told["recipe"] == 16


def test_flash_attention_is_attention(told):
    difference, weights = told["attention"]
    assert difference < 1e-6
    assert weights is None


def test_names_that_are_not_rehearsed_are_refused_by_name(told):
    refusal, no_amp, no_mask = told["refusals"]
    assert "FlashAttention was given key_padding_mask" in no_mask
    assert "transformer_engine.pytorch.Linear is not rehearsed on the CPU" in refusal
    assert "checkpoint, fp8_autocast" in refusal
    assert no_amp == "no amp"
