"""SDK v2: @remote, whose result is returned through S3."""

from common_client import CPU_TYPE, ROLE, report
from sagemaker.remote_function import remote


@remote(
    image_uri="registry.example/team/remote:1",
    role=ROLE,
    instance_type=CPU_TYPE,
    s3_root_uri="s3://clary/remote",
    keep_alive_period_in_seconds=0,
)
def multiply(a, b):
    """Run on the host."""
    print("multiplying", a, b)
    return a * b


report(result=multiply(6, 7))
