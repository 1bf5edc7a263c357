"""Requests that benchmark `warm` counts as reads of objects, and log lines that it counts as a start of four ranks."""

from benchmarks.counting_store import CountingStore
from benchmarks.job_life.bench_warm import _start


def test_only_reads_of_objects_after_a_given_request_count():
    store = CountingStore(url="http://store")
    store.requests += [("GET", "/clary/code.tar.gz"), ("GET", "/clary/data/1.bin?x-id=GetObject")]
    store.requests += [("HEAD", "/clary/data/1.bin"), ("GET", "/clary?list-type=2&prefix=data"), ("GET", "/clary/?acl")]
    store.requests += [("GET", "/clary/up?uploadId=7"), ("PUT", "/clary/model.tar.gz"), ("GET", "/")]
    assert store.objects_read(0) == ["/clary/code.tar.gz", "/clary/data/1.bin"]
    assert store.objects_read(1) == ["/clary/data/1.bin"]
    assert store.objects_read(len(store.requests)) == []


def test_a_start_takes_as_long_as_its_slowest_rank():
    log = ["prepared", *(f"FIRST 10{rank}.5" for rank in range(4)), *(f"REDUCED 11{rank}.5 4" for rank in range(4))]
    start = _start(log, 100.0)
    assert (start.first_line, start.first_allreduce, start.problem) == (3.5, 13.5, "")


def test_a_missing_rank_or_a_wrong_sum_is_reported():
    three = [*(f"FIRST 10{rank}.5" for rank in range(3)), *(f"REDUCED 11{rank}.5 4" for rank in range(4))]
    wrong = [*(f"FIRST 10{rank}.5" for rank in range(4)), *(f"REDUCED 11{rank}.5 3" for rank in range(4))]
    assert "got 3 and [4, 4, 4, 4]" in _start(three, 100.0).problem
    assert "got 4 and [3, 3, 3, 3]" in _start(wrong, 100.0).problem
    assert "got 0 and []" in _start([], 100.0).problem
