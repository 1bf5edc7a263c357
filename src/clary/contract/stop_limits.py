"""Time limits of a host's end, in the order of its steps, and how long the service waits for all of them.

Where: the agent's steps have these limits; the service counts a host as lost that has not reported the end of its
program `STOP_ALLOWANCE_S` after the grace of an order to stop. A host that works within its limits is never lost, so
its results are uploaded: a step gets a limit here, and is a part of the sum.
"""

from __future__ import annotations

LAST_LOOK_S = 1.0  # for a look at the checkpoint folder before the program is signalled, and again before it is killed
KILL_TIMEOUT_S = 60.0  # from SIGKILL until a process is given up
LAST_TRACES_S = 10.0  # for traces of an ended program
CLOSE_S = 30.0  # for the end of the program's host, with descendants, pipes and folders
LAST_OUTPUT_S = 30.0  # for an ended program's last output on a disk that hangs; waited for once
LEAST_FLUSH_S = 5.0  # for the last checkpoints, even if the program has used up the grace
FAILURE_FLUSH_S = 30.0  # for the last checkpoints after a failure, which has no grace
LAST_FILES_S = 5.0  # for saved tensors of a stopped or failed program, because no upload may follow
# For the last log lines, while the service answers: in all, and without progress. Lines that are left follow while
# results are uploaded, and once more when the host is released.
LAST_LINES_S = 120.0
LINES_WITHOUT_PROGRESS_S = 60.0
RELEASE_LINES_S = 6.0  # for log lines that are left at a host's release; the service waits longer for it to leave
LAST_ROWS_S = 1.0  # for the last rows of metrics
LAST_VALUES_S = 10.0  # for the last values of a training, while the service answers
REPORTS_S = 15.0  # for the way of the order to the agent, its own work, and the way of its report

STOP_ALLOWANCE_S = (
    2 * LAST_LOOK_S
    + KILL_TIMEOUT_S
    + LAST_TRACES_S
    + CLOSE_S
    + LAST_OUTPUT_S
    + max(LEAST_FLUSH_S, FAILURE_FLUSH_S)
    + LAST_FILES_S
    + max(LAST_LINES_S, LINES_WITHOUT_PROGRESS_S)
    + LAST_ROWS_S
    + LAST_VALUES_S
    + REPORTS_S
)
