"""SageMaker Experiments, lineage of artifacts, their metrics, and Search."""
