"""Collectives that first occur in a later trace of a TensorFlow function, as in elastic Horovod."""

import os
import subprocess

import pytest

from needs import ROOT, python_of

pytestmark = [pytest.mark.needs("tensorflow"), pytest.mark.timeout(150)]
LIMIT_S = 120
PROGRAM = """
import tensorflow as tf
from clary.train.collective.adapters.tensorflow.ordered import run_ordered

made = []

@tf.function
def step(x, reduces):
    if not made:
        made.append(tf.Variable([1.0]))  # as a layer that is built when it is called first
    result = x * made[0]
    if reduces:
        (result,) = run_ordered(lambda arrays: [2 * arrays[0]], [result], [result])
    made[0].assign_add([1.0])
    return result

with tf.distribute.get_strategy().scope():
    print([float(step(tf.constant([3.0]), reduces)[0]) for reduces in (False, True, False, True)])
"""


@pytest.mark.long(20)
def test_a_function_may_reduce_in_a_later_trace_only():
    done = subprocess.run(
        [str(python_of("tensorflow")), "-W", "ignore", "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[3.0, 12.0, 9.0, 24.0]\n"
