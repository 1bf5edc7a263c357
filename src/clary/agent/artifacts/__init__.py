"""Results of a job, from the hosts' trees to their final objects.

staging  the trees of results, and one host's tree put aside for the leader
merging  trees of several hosts as one
sinks    where members go: one archive, or loose objects
results  `upload_results`: the upload that a host's role requires
"""

from clary.agent.artifacts.results import UploadFacts, upload_results

__all__ = ["UploadFacts", "upload_results"]
