"""The line of output that names the error."""

import pytest

from clary.agent.log.last_words import error_line


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", None),
        ("----\n\n", None),
        (
            "bad flag\n[W1121 17:17:05.909337487 socket.cpp:207] [c10d] The hostname cannot be retrieved. err=-3\n"
            "[rank1]:[W1121 17:17:06.1 ProcessGroup.cpp:1] destroy_process_group() was not called\n",
            "bad flag",
        ),
        ("[W1121 17:17:05.909337487 socket.cpp:207] [c10d] The hostname cannot be retrieved. err=-3\n", None),
        ("loss=0.5\nbash: no-such: command not found\n", "bash: no-such: command not found"),
        (
            'Traceback (most recent call last):\n  File "train.py", line 1, in <module>\n    import x\n'
            "ModuleNotFoundError: No module named 'x'\nbye\n",
            "ModuleNotFoundError: No module named 'x'",
        ),
        ('Traceback (most recent call last):\n  File "a"\nmy.Oops\nlast words\n', "my.Oops"),
        (
            "Traceback (most recent call last):\n  a\nKeyError: 1\n\nDuring handling of the above exception:\n\n"
            "Traceback (most recent call last):\n  b\nValueError: two\nlines\n",
            "ValueError: two",
        ),
        ('  File "train.py", line 3\n    x = = 1\nSyntaxError: invalid syntax\n', "SyntaxError: invalid syntax"),
        (
            "[rank1]: Traceback (most recent call last):\n[rank1]:   File\n[rank1]: RuntimeError: bad\n[W] warning\n",
            "RuntimeError: bad",
        ),
        (
            "[1,0]<stderr>:Traceback (most recent call last):\n[1,0]<stderr>:  f\n[1,0]<stderr>:OSError: no\n---\n",
            "OSError: no",
        ),
        (
            "------\nmpirun noticed that process rank 1 with PID 0 on node a exited on signal 9 (Killed).\n------\n",
            "process rank 1 with PID 0 on node a exited on signal 9 (Killed).",
        ),
        (
            "E1121 api.py:874] failed (exitcode: -9) local_rank: 1 (pid: 42) of binary: /usr/bin/python\n"
            "Traceback (most recent call last):\n  File\n"
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n",
            "local rank 1 was ended by signal 9 (SIGKILL)",
        ),
        (
            "my.OddError: printed by a program of another language\nbye\n",
            "my.OddError: printed by a program of another language",
        ),
    ],
)
def test_the_line_that_names_the_error_is_found(text, expected):
    assert error_line(text.splitlines()) == expected
