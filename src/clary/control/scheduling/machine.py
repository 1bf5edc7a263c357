"""Resources of a machine; engines measure them, scheduling divides them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Machine:
    """CPUs, memory and GPUs that hosts may use."""

    num_cpus: int
    memory_bytes: int
    num_gpus: int = 0

    def __str__(self) -> str:
        """Return the machine's CPUs and GPUs as a phrase, for notes and reasons."""
        cpus = "1 CPU" if self.num_cpus == 1 else f"{self.num_cpus} CPUs"
        gpus = {0: "no GPU", 1: "1 GPU"}.get(self.num_gpus, f"{self.num_gpus} GPUs")
        return f"{cpus} and {gpus}"
