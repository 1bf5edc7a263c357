"""The checks for a machine with a GPU: their order, and how long each may take.

Where: `__main__` runs these one after the other, each in processes of its own. Correctness comes first, numbers last.

[Note: time] The limits add up to far more than the time of all, since a check that is well needs a fraction of its
limit. So that a few that hang do not take it all, a check that no other needs is given at most a third of what is left,
and what later ones have set aside, the measurements, is not among that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests/gpu"
LIMIT_S = 60.0  # of most checks: importing torch and opening the driver take ten seconds
LEAST_S = 5.0  # a check that is given less cannot begin
SHARE = 3  # of the open time, the part that one check may take


@dataclass(frozen=True)
class Check:
    """One check.

    Args:
        arguments: of the interpreter that has torch.
        limit_s: after which it is ended and has failed.
        set_aside_s: of the time of all, which no check before it is given.
        is_needed: whether the others need it: it is given its whole limit.
    """

    name: str
    arguments: tuple[str, ...]
    limit_s: float = LIMIT_S
    set_aside_s: float = 0.0
    is_needed: bool = False


def _build() -> Check:
    return Check("build the core", ("-m", "tools.gpu_checks.building"), 150.0, is_needed=True)


def _machine() -> Check:
    return Check("machine", ("-m", "tools.gpu_checks.machine"), 60.0)


def _program(program: str, function: str, size: int) -> Check:
    words = function.removeprefix("test_").replace("_", " ")
    name = f"{words}, {size} rank{'s' if size > 1 else ''}"
    return Check(name, ("-m", "tools.gpu_checks.one_test", str(TESTS / program), function, str(size)))


def _measurement(name: str, *, set_aside_s: float) -> Check:
    return Check(f"measure {name}", ("-m", "tools.gpu_checks.measurements", name), 90.0, set_aside_s)


def share_of(check: Check, later: Sequence[Check], *, left_s: float) -> float:
    """Return how long a check may take of the time that is left for it and later ones. Pure; see [Note: time]."""
    open_s = left_s - sum(one.set_aside_s for one in later)
    # What is set aside is used to the end; of the rest later checks need something too.
    is_shared = bool(later) and not check.set_aside_s and not check.is_needed and open_s > SHARE * LEAST_S
    return min(check.limit_s, open_s / SHARE if is_shared else open_s)


def all_checks() -> Sequence[Check]:
    """Return all checks in the order in which they run."""
    ranks, single, hand_over = "gpu_ranks_program.py", "gpu_single_program.py", "gpu_hand_over_program.py"
    return (
        _machine(),
        _build(),
        *(
            _program(ranks, name, size)
            for size in (1, 2)
            for name in ("test_collectives_of_tensors_of_a_gpu", "test_the_path_of_tensors_is_chosen_by_placement")
        ),
        *(
            _program(ranks, name, 2)
            for name in (
                "test_ddp_trains_as_one_process_does",
                "test_fsdp_trains_as_one_process_does",
                "test_fsdp2_trains_as_one_process_does",
                "test_smp_v1_trains_as_one_process_does",
                "test_smp_v2_trains_as_one_process_does",
            )
        ),
        *(
            _program(single, name, 1)
            for name in (
                "test_ddp_over_nccl",
                "test_offloading_gives_the_same_gradients",
                "test_offloading_copies_while_the_gpu_computes",
                "test_a_snapshot_holds_what_the_gpu_held",
                "test_amp_trains",
                "test_a_compiled_model_trains",
                "test_health_checks_judge_the_gpu",
                "test_errors_of_the_driver_can_be_read",
                "test_the_gpu_is_measured",
            )
        ),
        *(
            _program(hand_over, name, 2)
            for name in (
                "test_tensors_go_from_gpu_to_gpu_memory",
                "test_a_schedule_hands_over_on_the_gpu",
                "test_smp_v1_hands_over_on_the_gpu",
            )
        ),
        Check("hosts are given GPUs", ("-m", "tools.gpu_checks.host_tests"), 100.0),
        *(
            _measurement(name, set_aside_s=seconds)
            for name, seconds in (
                ("amp", 20.0),
                ("compile", 45.0),
                ("offload", 25.0),
                ("snapshot", 20.0),
                ("hand-over", 25.0),
            )
        ),
    )
