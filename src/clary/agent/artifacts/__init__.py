"""Results of a job, from the hosts' trees to their final objects.

staging  one host's trees of results, stored where the leader finds them
merging  the trees of several hosts, merged into one
sinks    writers of members: one archive, or one object per file
results  `upload_results`: the upload that a host's role requires
"""

from clary.agent.artifacts.results import UploadFacts, upload_results

__all__ = ["UploadFacts", "upload_results"]
