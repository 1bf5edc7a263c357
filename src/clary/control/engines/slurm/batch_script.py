"""Writes the batch script of an allocation: one srun for each host, so that one host can be ended alone. Pure.

Where: `scheduler` hands it to sbatch on standard input. The script contains no secret: a host authenticates with
munge.

Behaviour of Slurm that the script has to handle:
- It signals every process of a cancelled job, this shell included; the shell must not exit before its steps.
- GPU variables of the batch step would be passed on to steps on nodes without GPUs.
- In a heterogeneous job srun reaches the first component only, unless an option names another.
"""

from __future__ import annotations

import base64
import inspect
import json
import shlex
import zlib
from collections.abc import Sequence

from clary.base.errors import EngineError
from clary.control.engines.cluster.scheduler import Boot
from clary.control.engines.slurm import step_start

MAX_ARGUMENT_BYTES = 100_000  # Linux accepts 131072 bytes in one argument
GPU_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "ROCR_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
    "SLURM_GPUS_ON_NODE",
    "SLURM_JOB_GPUS",
    "SLURM_STEP_GPUS",
)

_SCRIPT = """#!/bin/bash
# Hosts of {tag}, for Clary: one step per host.
umask 077
unset {variables}
[ -n "${{HOME-}}" ] || HOME=~
export HOME
output={output}
if [ -d "$output" ] && [ -O "$output" ] && [ -w "$output" ]; then
    exec >>"$output/slurm-$SLURM_JOB_ID.out" 2>&1
fi
trap : TERM CONT
python={python}
program={program}
payload={payload}
declare -A steps
start_hosts() {{ # nodes, options of srun for all, indices
    local nodes=$1 group=$2 node
    shift 2
    for node in $(scontrol show hostnames "$nodes"); do
        [ $# -gt 0 ] || break
        srun $group --overlap --nodes=1 --ntasks=1 --nodelist="$node" --job-name="algo-$(($1 + 1))" --no-kill \\
            --kill-on-bad-exit=0 --input=none --mpi=none --cpu-bind=none \\
            "$python" -I -c "$program" "$payload" "$1" &
        steps[$!]="algo-$(($1 + 1)) on $node"
        shift
    done
}}
{starts}
for pid in "${{!steps[@]}}"; do
    wait "$pid"
    code=$?
    while kill -0 "$pid" 2>/dev/null; do # a signal has ended the wait, not the step
        wait "$pid"
        code=$?
    done
    echo "${{steps[$pid]}}: its step has ended with $code"
done
"""


def batch_script(
    tag: str, components: Sequence[Sequence[int]], *, boot: Boot, python: str, scratch: str, output: str
) -> str:
    """Return the script.

    Args:
        tag: tag of the allocation.
        components: indices of the hosts, by component of the job.
        boot: the boot's script, service URL and certificate, the same for every host.
        python: interpreter of the nodes.
        scratch: folder of the nodes; empty for the nodes' default.
        output: folder for the output of steps, used where a node sees it.
    Raises: EngineError if the boot is too long for an argument.
    """
    payload = _payload(tag, boot=boot, scratch=scratch, output=output)
    program = inspect.getsource(step_start)
    longest = max(len(payload), len(program.encode()))
    if longest > MAX_ARGUMENT_BYTES:
        raise EngineError(f"the boot takes {longest} bytes; one argument of a step holds at most {MAX_ARGUMENT_BYTES}")
    return _SCRIPT.format(
        tag=tag,
        variables=" ".join(GPU_VARIABLES),
        output=shlex.quote(output),
        python=shlex.quote(python),
        program=shlex.quote(program),
        payload=shlex.quote(payload),
        starts="\n".join(_start(number, component, len(components)) for number, component in enumerate(components)),
    )


def _start(number: int, component: Sequence[int], num_components: int) -> str:
    indices = " ".join(map(str, component))
    if num_components == 1:
        return f'start_hosts "$SLURM_JOB_NODELIST" "" {indices}'
    return f'start_hosts "$SLURM_JOB_NODELIST_HET_GROUP_{number}" --het-group={number} {indices}'


def _payload(tag: str, *, boot: Boot, scratch: str, output: str) -> str:
    order = {
        "boot": boot.script,
        "ca": boot.ca_pem,
        "service": boot.service_url,
        "tag": tag,
        "scratch": scratch,
        "output": output,
    }
    return base64.b64encode(zlib.compress(json.dumps(order).encode(), 9)).decode("ascii")
