"""SDK v2: @remote with a configuration file of its own, as notebooks write it; role and bucket come from Clary's."""

import os
import tempfile
from pathlib import Path

from common_client import CPU_TYPE, report
from sagemaker.remote_function import remote

folder = Path(tempfile.mkdtemp())
(folder / "config.yaml").write_text(
    f"""SchemaVersion: '1.0'
SageMaker:
  PythonSDK:
    Modules:
      RemoteFunction:
        InstanceType: {CPU_TYPE}
        ImageUri: registry.example/team/remote:1
        EnvironmentVariables: {{"OWN": "set by the user's file"}}
"""
)
os.environ["SAGEMAKER_USER_CONFIG_OVERRIDE"] = str(folder)


@remote(keep_alive_period_in_seconds=0)
def multiply(a, b):
    """Run on the host."""
    print("multiplying", a, b)
    return a * b, os.environ.get("OWN")


product, own = multiply(6, 7)
report(result=product, own=own)
