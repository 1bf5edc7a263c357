"""`python -m benchmarks` lists; `python -m benchmarks NAME [--quick] [--record]` runs one; `--all` runs all."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Iterator

from benchmarks.collectives import (
    bench_allgather_host,
    bench_allreduce_host,
    bench_allreduce_net,
    bench_ddp_real,
    bench_growth,
    bench_overlap,
    bench_reducescatter_host,
    bench_select,
    bench_shrink,
)
from benchmarks.compilation import bench_amp, bench_compile
from benchmarks.control import bench_api, bench_console, bench_edge, bench_idle
from benchmarks.frameworks import bench_deepspeed, bench_horovod, bench_tensorflow
from benchmarks.job_life import (
    bench_concurrency,
    bench_failfast,
    bench_faults,
    bench_goodput,
    bench_recover,
    bench_signals,
    bench_spot,
    bench_start,
    bench_warm,
)
from benchmarks.lines import Line, write
from benchmarks.machines import bench_cluster, bench_lostnode, bench_orphans, bench_takeback
from benchmarks.sight import bench_logs, bench_metrics, bench_observe, bench_sampling, bench_tensors, bench_verdicts
from benchmarks.training import (
    bench_checkpoint,
    bench_memory,
    bench_parity,
    bench_partition,
    bench_pipeline,
    bench_sharded,
    bench_step,
)
from benchmarks.tuning import bench_hyperband, bench_kills, bench_tuning

BENCHMARKS: dict[str, tuple[str, Callable[[bool], Iterator[Line]]]] = {
    "allgather-host": ("all_gather among ranks of one host, the same as allreduce-host", bench_allgather_host.run),
    "allreduce-host": ("all_reduce among ranks of one host, against gloo and MPI", bench_allreduce_host.run),
    "allreduce-net": ("all_reduce between hosts: time and bytes on the links, against gloo", bench_allreduce_net.run),
    "amp": ("sagemaker_amp beside float32 and the program's own autocast: a step, loss", bench_amp.run),
    "api": ("accepted jobs a second and latency of describe, against moto's server", bench_api.run),
    "checkpoint": ("what a save keeps training for, how fast it is written and read again", bench_checkpoint.run),
    "cluster": ("submit to first line and first all_reduce on Slurm and on boxes, against by hand", bench_cluster.run),
    "compile": ("models compiled in jobs beside eager: a step, first step cold and warm", bench_compile.run),
    "concurrency": ("50 jobs at once by 8 clients: latencies, queueing, memory of the service", bench_concurrency.run),
    "console": ("what the console asks the service for: 10,000 jobs, a million log lines", bench_console.run),
    "ddp-real": ("real models trained over smddp and over gloo: samples a second, loss, bits", bench_ddp_real.run),
    "deepspeed": ("ZeRO over smddp and over gloo, in turns: a step, losses, memory", bench_deepspeed.run),
    "edge": ("health checks while strangers without a key attack the port", bench_edge.run),
    "failfast": ("first death in a gang to the end of all of it, against torchrun", bench_failfast.run),
    "faults": ("kills, pauses, cuts, full disks: what was lost, doubled or hung", bench_faults.run),
    "goodput": ("steps that count of a job whose hosts die again and again, against the ceiling", bench_goodput.run),
    "growth": ("all_reduce by ranks and hosts, gradients and saves by parameters: beside formulas", bench_growth.run),
    "horovod": ("horovod.torch: all_reduce by size and a training, against the real Horovod", bench_horovod.run),
    "idle": ("what a service with nothing to do takes of the machine, fresh and after jobs", bench_idle.run),
    "logs": ("a program's output into the store: rate, cost, delay, held-up writes, against syslog-ng", bench_logs.run),
    "lostnode": ("power-off of a node to the next step of its job, against torchrun", bench_lostnode.run),
    "memory": ("activations recomputed or on a disk: memory saved, time paid, beside torch's", bench_memory.run),
    "metrics": ("points per second stored and query time for a week of 64 ranks", bench_metrics.run),
    "observe": ("what being looked at costs a training: all defaults, and deep profiles", bench_observe.run),
    "orphans": ("what is left of launches whose launcher was killed, beside sbatch's", bench_orphans.run),
    "overlap": ("communication that the backward pass does not hide, against gloo", bench_overlap.run),
    "parity": ("real models trained by SMP and by DDP: are their losses the same", bench_parity.run),
    "partition": ("how evenly models are cut into stages, against every other cut", bench_partition.run),
    "recover": ("death of a host to the next step of its job, against torchrun", bench_recover.run),
    "pipeline": ("idle ranks of schedules against their formulas, beside torch's pipelining", bench_pipeline.run),
    "reducescatter-host": ("reduce_scatter among ranks of one host, the same", bench_reducescatter_host.run),
    "sampling": ("what it costs a host to measure itself, against opening every file for each row", bench_sampling.run),
    "select": ("what is lost by the choice of the algorithm, over sizes and topologies", bench_select.run),
    "sharded": ("bytes, speed and memory of sharded parameters, beside FSDP2 and DDP", bench_sharded.run),
    "shrink": ("compressed gradients on slow links: tokens a second, bytes, loss", bench_shrink.run),
    "signals": ("first to last SIGTERM handler of a job that is stopped", bench_signals.run),
    "spot": ("a job under a trace of spot capacity: cost of a step, share of the oracle's steps", bench_spot.run),
    "start": ("submit to first line of user code, in parts, against torchrun", bench_start.run),
    "step": ("a training step beside the same by hand: pipeline, tensor group, shards", bench_step.run),
    "takeback": ("share of the grace that programs get, and what they find again", bench_takeback.run),
    "tensorflow": ("SMDDP, Horovod and SMP for TensorFlow, against its own collectives", bench_tensorflow.run),
    "tensors": ("what saving all weights costs a training, every 10 steps and every 200", bench_tensors.run),
    "tuning": ("a hundred short trials, quality of the search, against Ray Tune and Optuna", bench_tuning.run),
    "tuning-hyperband": ("epochs of Hyperband and its best, against all trained to the end", bench_hyperband.run),
    "tuning-kills": ("a tuning job whose service is killed 20 times: trials lost or doubled", bench_kills.run),
    "verdicts": ("stragglers of real jobs: found and named rightly, missed, false alarms", bench_verdicts.run),
    "warm": ("submit to first line and first all_reduce, cold and warm, against torchrun", bench_warm.run),
}


def main() -> int:
    """Run the benchmarks that the command line names; without a name list all of them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("name", nargs="?", choices=sorted(BENCHMARKS))
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--quick", action="store_true", help="few samples: proves that it runs")
    parser.add_argument("--record", action="store_true", help="append to benchmarks/results/NAME.jsonl")
    options = parser.parse_args()
    # As for ctrl-c: what a benchmark has started ends with it.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    if not options.name and not options.all:
        for name, (about, _) in BENCHMARKS.items():
            print(f"{name:<18} {about}", file=sys.stderr)
        return 0
    failed = False
    for name in sorted(BENCHMARKS) if options.all else [options.name]:
        for line in BENCHMARKS[name][1](options.quick):
            write(name, line, record=options.record)
            failed = failed or not line.verified
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
