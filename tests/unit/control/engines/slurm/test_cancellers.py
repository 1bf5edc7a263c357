"""Users that cancelled jobs, from recorded output of sacct and log lines of slurmctld 22.05."""

from clary.control.engines.slurm.cancellers import user_in_log, user_in_state

LOG = """\
[2026-11-26T16:59:07.134] _slurm_rpc_submit_batch_job: JobId=3 InitPrio=4294901757 usec=248
[2026-11-26T16:59:09.173] _slurm_rpc_kill_job: REQUEST_KILL_JOB JobId=3 uid 65534
[2026-11-26T16:59:34.737] _slurm_rpc_kill_job: REQUEST_KILL_JOB JobId=4 uid 0
[2026-11-26T17:00:10.926] x [2026-11-26T17:00:10.926] _slurm_rpc_kill_job: REQUEST_KILL_JOB JobId=7 uid 65534
"""


def test_the_log_names_the_user_who_cancelled():
    assert user_in_log(LOG, 4) == "root"
    assert user_in_log(LOG, 3) == "nobody"


def test_the_same_text_inside_a_line_names_no_user():
    assert user_in_log(LOG, 7) == ""
    assert user_in_log(LOG, 40) == ""


def test_accounting_names_the_user_who_cancelled():
    assert user_in_state("CANCELLED by 0\n") == "root"
    assert user_in_state("CANCELLED by 4294967290\n") == "user 4294967290"
    assert user_in_state("COMPLETED\n") == ""
