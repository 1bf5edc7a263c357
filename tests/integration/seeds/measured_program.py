"""Program that computes for as long as a host needs for several measurements."""

import time

LASTS_S = 4.0  # a host takes two measurements per second

end_s = time.monotonic() + LASTS_S
while time.monotonic() < end_s:
    sum(range(10_000))
    time.sleep(0.05)
