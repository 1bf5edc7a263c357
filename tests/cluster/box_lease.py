"""The lease of one host on a box, whose boot is a stand-in that records each signal."""

import json

from box_head_service import until

TAG = "pool_0123456789ab"


class Lease:
    """The lease of host 0 on box1."""

    def __init__(self, bed, service, *, user="ml"):
        self.bed, self.service, self._user = bed, service, user
        self.folder = bed.node_folder("box1", user)
        self.place = self.folder / f"scratch/{TAG}-0"

    def begin(self):
        self.service.ask("ask", TAG, 1)
        until(lambda: self.service.told(TAG)["state"] == "granted", "the host starts")
        until(lambda: (self.place / "facts.json").exists(), "the boot says its facts")
        self.pid = json.loads((self.place / "facts.json").read_text())["pid"]
        return self

    def pid_of(self, word):
        def pids():
            return [pid for pid, args in self.bed.processes("box1").items() if f" {word} " in args and ".pyz" in args]

        until(lambda: len(pids()) == 1, f"one process with {word} runs")
        [pid] = pids()
        return pid

    def kill(self, word):
        self.bed.run("box1", "kill", "-9", str(self.pid_of(word)))

    def repair(self):
        return self.bed.clary("hosts", "add", f"{self._user}@box1")

    @property
    def member(self):
        return self.service.told(TAG)["members"].get("0")

    @property
    def num_begun(self):
        return (self.place / "notes").read_text().count("began")
