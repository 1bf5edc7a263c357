"""Measurements of a host while it serves a job: rows of numbers, measured here and sent to the service.

    sources (/proc, cgroup, disk, GPUs) -> sampling -> row_store -> shipper -> service

Where: `metrics.host_metrics` creates this chain for one host of one attempt; `contract.metric_samples` defines the sent
rows.
"""
