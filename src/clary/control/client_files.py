"""Files that make unmodified clients talk to this service: a SageMaker configuration, and the variables to export.

Where: the service writes the files when it starts; `clary env` prints the variables.
The SDKs build their STS clients with a fixed https address. Naming a bucket in the SageMaker configuration spares
those calls; scripts that call STS themselves (`get_execution_role`) need `--tls`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from clary.contract.launch_plan import Credentials
from clary.control.settings import Settings

SAGEMAKER_CONFIG = "sagemaker-config.yaml"
CA_FILE = "ca.pem"


def sagemaker_config(settings: Settings) -> str:
    """Return the YAML that both SDKs read: default bucket, execution role, telemetry off."""
    role = f"arn:aws:iam::{settings.account_id}:role/{settings.role_name}"
    return f"""SchemaVersion: '1.0'
SageMaker:
  PythonSDK:
    Modules:
      TelemetryOptOut: true
      Session:
        DefaultS3Bucket: {settings.default_bucket}
      RemoteFunction:
        RoleArn: {role}
  TrainingJob:
    RoleArn: {role}
"""


def client_variables(
    settings: Settings, *, url: str, credentials: Credentials, client_folder: Path, tls_folder: Path | None
) -> Mapping[str, str]:
    """Return what a client needs in its environment, and only that.

    Args:
        settings: of the service.
        url: where the service answers.
        credentials: key pair of the caller.
        client_folder: where the service wrote the generated files.
        tls_folder: folder of the private CA for clients that insist on the real STS address; None to leave it alone.
    """
    variables = {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": credentials.access_key_id,
        "AWS_SECRET_ACCESS_KEY": credentials.secret_access_key,
        "AWS_DEFAULT_REGION": settings.region,
        "AWS_REGION": settings.region,
        # Without it the SDKs ask a cloud metadata address for keys when they find none.
        "AWS_EC2_METADATA_DISABLED": "true",
        "SAGEMAKER_USER_CONFIG_OVERRIDE": str(client_folder / SAGEMAKER_CONFIG),
    }
    if tls_folder is not None:
        variables["AWS_CA_BUNDLE"] = str(tls_folder / CA_FILE)
        # botocore looks for endpoints.json here before its own: sts.<region> becomes this machine.
        variables["AWS_DATA_PATH"] = str(client_folder / "models")
    return variables


# Variables that would make clients look elsewhere than at the service.
UNSET_VARIABLES = ("AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_DEFAULT_PROFILE")
