"""Files that make unmodified clients talk to this service: a SageMaker configuration, and the variables to export.

Where: the service writes the files when it starts; `clary env` prints the variables.
The SDKs build their STS clients with a fixed https address. Naming a bucket in the SageMaker configuration spares
those calls; scripts that call STS themselves (`get_execution_role`) need `--tls`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from clary.contract.launch_plan import Credentials
from clary.control.settings import Settings

SAGEMAKER_CONFIG = "sagemaker-config.yaml"
CA_FILE = "ca.pem"


@dataclass(frozen=True, kw_only=True)
class TlsClient:
    """What a client needs to find the service at AWS's own https addresses."""

    folder: Path  # holds the private authority
    proxy_url: str


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
    settings: Settings,
    *,
    url: str,
    credentials: Credentials,
    client_folder: Path,
    tls: TlsClient | None = None,
) -> Mapping[str, str]:
    """Return what a client needs in its environment, and only that.

    Args:
        settings: of the service.
        url: where the service answers.
        credentials: key pair of the caller.
        client_folder: where the service wrote the generated files.
        tls: for clients that insist on AWS's own addresses; None leaves https alone.
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
    if tls is not None:
        variables |= {
            "AWS_CA_BUNDLE": str(tls.folder / CA_FILE),
            # Python's clients read the lower-case name first.
            "HTTPS_PROXY": tls.proxy_url,
            "https_proxy": tls.proxy_url,
        }
    return variables


# Variables that would make clients look elsewhere than at the service.
UNSET_VARIABLES = ("AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_DEFAULT_PROFILE")
