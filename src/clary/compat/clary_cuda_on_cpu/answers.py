"""Constant answers to questions about a GPU and its libraries.

See [Note: how], 2, of the package.
"""

from __future__ import annotations

import os
from collections import defaultdict
from typing import Any

from .names import NAME
from .streams import Stream

CAPABILITY = (8, 0)  # the first capability with bfloat16, so that scripts that check for bfloat16 use it
CUDA_VERSION = "12.8"  # version in torch's wheels on PyPI when this was written
CUDNN_VERSION = 91002
NCCL_VERSION = (2, 27, 3)


class DeviceProperties:
    """The answer of `torch.cuda.get_device_properties`; an A100's values for properties that a CPU lacks."""

    name = NAME
    major, minor = CAPABILITY
    is_integrated, is_multi_gpu_board = 1, 0
    warp_size, max_threads_per_multi_processor, max_threads_per_block, regs_per_multiprocessor = 32, 2048, 1024, 65536
    shared_memory_per_block, shared_memory_per_block_optin, shared_memory_per_multiprocessor = 49152, 166912, 167936
    L2_cache_size, clock_rate, memory_clock_rate, memory_bus_width = 41943040, 1410000, 1215000, 5120
    gcnArchName, uuid, pci_bus_id, pci_device_id, pci_domain_id = NAME, "00000000-0000-0000-0000-000000000000", 0, 0, 0

    def __init__(self) -> None:
        self.total_memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        self.multi_processor_count = os.cpu_count() or 1


class Cudart:
    """The CUDA runtime functions that scripts call, such as for profilers and registered memory; each returns 0."""

    class cudaError:
        """Error codes: only success exists."""

        success = 0

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cuda"):
            raise AttributeError(name)
        return lambda *_, **__: 0


def answers_of_cuda() -> dict[str, Any]:
    """Return the constant answers of functions of `torch.cuda`, by the name of the function."""
    stream, properties = Stream(), DeviceProperties()
    memory = properties.total_memory
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    answers: dict[str, Any] = {
        "is_available": True,
        "get_device_name": NAME,
        "get_device_capability": CAPABILITY,
        "get_device_properties": properties,
        "is_bf16_supported": True,
        "is_tf32_supported": True,
        "is_current_stream_capturing": False,
        "can_device_access_peer": True,
        "current_stream": stream,
        "default_stream": stream,
        "get_stream_from_external": stream,
        "mem_get_info": (free, memory),
        "memory_summary": f"{NAME}: no memory of a GPU is used",
        "memory_snapshot": [],
        "memory_stats": defaultdict(int),
        "memory_stats_as_nested_dict": {},
        "host_memory_stats": defaultdict(int),
        "host_memory_stats_as_nested_dict": {},
        "list_gpu_processes": "",
        "get_arch_list": [],
        "get_allocator_backend": "native",
        "get_per_process_memory_fraction": 1.0,
        "cudart": Cudart(),
    }
    zeros = (
        "memory_allocated max_memory_allocated memory_reserved max_memory_reserved memory_cached max_memory_cached "
        "utilization memory_usage temperature power_draw clock_rate device_memory_used get_sync_debug_mode "
        "current_blas_handle current_solver_handle"
    )
    nothing = (
        "synchronize empty_cache ipc_collect reset_peak_memory_stats reset_max_memory_allocated set_stream "
        "reset_max_memory_cached reset_accumulated_memory_stats set_per_process_memory_fraction set_sync_debug_mode "
        "caching_allocator_enable check_error reset_accumulated_host_memory_stats reset_peak_host_memory_stats"
    )
    answers.update(dict.fromkeys(zeros.split(), 0))
    answers.update(dict.fromkeys(nothing.split()))
    return answers


def answer_for_libraries(torch: Any) -> None:
    """Make torch return versions of CUDA and its libraries, as a build for GPUs does."""
    torch.version.cuda = CUDA_VERSION
    torch.backends.cuda.is_built = lambda: True
    torch.backends.cudnn.is_available = lambda: True
    torch.backends.cudnn.version = lambda: CUDNN_VERSION
    torch.cuda.nccl.version = lambda: NCCL_VERSION
