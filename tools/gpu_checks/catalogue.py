"""What is checked on a machine with a GPU, in which order, and how long each check may take.

Where: `__main__` runs these one after the other, each in processes of its own. Correctness comes first, numbers last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests/gpu"
LIMIT_S = 60.0  # of most checks: importing torch and opening the driver take ten seconds


@dataclass(frozen=True)
class Check:
    """One check.

    Args:
        arguments: of the interpreter that has torch.
        limit_s: after which it is ended and has failed.
    """

    name: str
    arguments: tuple[str, ...]
    limit_s: float = LIMIT_S


def _build() -> Check:
    return Check("build the core", ("-m", "tools.gpu_checks.building"), 150.0)


def _machine() -> Check:
    return Check("machine", ("-m", "tools.gpu_checks.machine"), 60.0)


def _program(program: str, function: str, size: int) -> Check:
    words = function.removeprefix("test_").replace("_", " ")
    name = f"{words}, {size} rank{'s' if size > 1 else ''}"
    return Check(name, ("-m", "tools.gpu_checks.one_test", str(TESTS / program), function, str(size)))


def _measurement(name: str) -> Check:
    return Check(f"measure {name}", ("-m", "tools.gpu_checks.measurements", name), 90.0)


def all_checks() -> Sequence[Check]:
    """Return all checks in the order in which they run."""
    ranks, single, hand_over = "gpu_ranks_program.py", "gpu_single_program.py", "gpu_hand_over_program.py"
    return (
        _machine(),
        _build(),
        *(
            _program(ranks, name, size)
            for size in (1, 2)
            for name in ("test_collectives_of_tensors_of_a_gpu", "test_the_way_of_tensors_is_chosen")
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
        *(_measurement(name) for name in ("amp", "compile", "offload", "snapshot", "hand-over")),
    )
