"""Measurements of a host while it serves a job: rows of numbers, taken here and sent to the service.

    sources (/proc, cgroup, disk, GPUs) -> sampling -> row_store -> shipper -> service

Where: `metrics.host_metrics` makes it for one host of one attempt; `contract.metric_samples` defines the sent rows.
"""
