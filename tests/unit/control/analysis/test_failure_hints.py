"""A failure as shown to users: its last frames, a description of its kind, advice for common failures."""

import pytest

from clary.control.analysis.failure_hints import CATEGORIES, category, hint
from clary.control.analysis.tracebacks import last_traceback
from clary.control.jobs.verdicts import Verdict

TRACEBACK = [
    "Traceback (most recent call last):",
    '  File "/opt/ml/code/train.py", line 3, in <module>',
    "    import tokenizer_kit",
    "ModuleNotFoundError: No module named 'tokenizer_kit'",
]


def test_the_last_frames_and_the_exception_are_found_among_other_lines():
    lines = ["Traceback (most recent call last):", '  File "a", line 1, in b', "OSError: old", "going on", *TRACEBACK]
    assert last_traceback([*lines, "bye"]) == TRACEBACK


def test_of_a_deep_traceback_the_innermost_frames_are_shown():
    frames = [line for number in range(9) for line in (f'  File "f{number}.py", line 1, in g', "    h()")]
    shown = last_traceback(["Traceback (most recent call last):", *frames, "ValueError: two", "  lines of it"])
    assert shown[1] == "  ... 5 frames above"
    assert shown[2] == '  File "f5.py", line 1, in g'
    assert shown[-2:] == ["ValueError: two", "  lines of it"]


def test_the_launchers_prefix_of_each_line_is_left_out():
    assert last_traceback(["[rank0]: " + line for line in TRACEBACK] + ["W0101 torchrun: ended"]) == TRACEBACK


@pytest.mark.parametrize("lines", [[], ["fine"], ["Traceback (most recent call last):"], [*TRACEBACK[:1], "x"]])
def test_lines_without_a_whole_traceback_have_none(lines):
    assert last_traceback(lines) == []


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("ModuleNotFoundError: No module named 'tokenizer_kit'", "add tokenizer_kit to requirements.txt"),
        ("/env/bin/python3: No module named pip", "uv pip install --python /env/bin/python3 pip."),
        ("No module named pip", "uv pip install --python INTERPRETER pip."),
        ("ModuleNotFoundError: No module named 'pip'", "run `clary environments add` again"),
        ("ModuleNotFoundError: No module named 'pipeline'", "add pipeline to requirements.txt"),
        ("ModuleNotFoundError: No module named 'sklearn.linear_model'", "add scikit-learn to requirements.txt"),
        ("train.py: error: unrecognized arguments: --lr 0.1 --epochs 3", "does not know lr, epochs"),
        ("KeyError: 'SM_CHANNEL_VALIDATION'", "no input channel validation (it has train)"),
        ("No such file or directory: '/opt/ml/input/data/test/x.csv'", "no input channel test (it has train)"),
        ("No such file or directory: '/opt/ml/input/data/train/x.csv'", "Channel train is there"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried", "smaller batches"),
        ("OutOfMemory: the host's limit", "The host's memory"),
        ("OSError: [Errno 28] No space left on device", "The disk was full"),
        ("run.sh: line 2: nvcc: command not found", "no command nvcc"),
        ("ValueError: it is just wrong", ""),
    ],
)
def test_a_hint_is_given_only_for_certain_causes(words, part):
    told = hint(words, channels=["train"])
    assert part in told
    assert bool(told) == bool(part)


def test_every_verdict_has_a_description_that_names_no_user():
    assert set(CATEGORIES) == set(Verdict)
    assert category("user") == "your program"
    assert category("") == "unknown"
