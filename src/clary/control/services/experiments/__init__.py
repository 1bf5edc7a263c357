"""SageMaker Experiments, their metrics, lineage of artifacts, and Search."""
