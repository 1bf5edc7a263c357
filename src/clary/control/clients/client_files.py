"""A SageMaker configuration file, and environment variables, that make unmodified clients talk to this service.

Where: the service writes the file when it starts; `clary env` prints the variables, and writes the file for a service
on another machine. The SDKs build their STS clients with a fixed https address. A default bucket in the SageMaker
configuration makes the SDKs' calls to STS unnecessary; scripts that call STS themselves (`get_execution_role`) need
`--tls`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from clary.contract.launch_plan import Credentials
from clary.contract.object_store.library_variables import library_variables
from clary.control.clients.caller_variables import exceptions, exceptions_within_aws, with_service
from clary.control.permissions.roles import role_arn
from clary.control.settings import Settings

SAGEMAKER_CONFIG = "sagemaker-config.yaml"
CA_FILE = "ca.pem"
BUNDLE_VARIABLE = "AWS_CA_BUNDLE"
TLS_VARIABLES = (BUNDLE_VARIABLE, "HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy")


def sagemaker_config(settings: Settings) -> str:
    """Return the YAML that both SDKs read: default bucket, execution role, telemetry off."""
    # JSON text is valid YAML: a bucket called 123 stays text, and no character in a name can end the line.
    role = json.dumps(role_arn(settings.account_id, settings.role_name))
    return f"""SchemaVersion: '1.0'
SageMaker:
  PythonSDK:
    Modules:
      TelemetryOptOut: true
      Session:
        DefaultS3Bucket: {json.dumps(settings.default_bucket)}
      RemoteFunction:
        RoleArn: {role}
  TrainingJob:
    RoleArn: {role}
"""


def client_variables(
    settings: Settings, *, url: str, credentials: Credentials, client_folder: Path
) -> Mapping[str, str]:
    """Return the environment variables that a client needs, and no others.

    Args:
        settings: settings of the service.
        url: URL of the service.
        credentials: key pair of the caller.
        client_folder: folder of the SageMaker configuration.
    """
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": credentials.access_key_id,
        "AWS_SECRET_ACCESS_KEY": credentials.secret_access_key,
        "AWS_DEFAULT_REGION": settings.region,
        "AWS_REGION": settings.region,
        # Without this variable, SDKs that find no keys request keys from a cloud metadata address.
        "AWS_EC2_METADATA_DISABLED": "true",
        **library_variables(url),
        # The SDKs merge the user's file over the administrator's. As the user's, it keeps settings for AWS out of
        # requests; as the administrator's, it stays where a program names a user's file of its own.
        "SAGEMAKER_ADMIN_CONFIG_OVERRIDE": str(client_folder / SAGEMAKER_CONFIG),
        "SAGEMAKER_USER_CONFIG_OVERRIDE": str(client_folder / SAGEMAKER_CONFIG),
    }


def tls_variables(tls_folder: Path, *, url: str, proxy_url: str, environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return the additional variables with which clients reach the service at AWS's own https addresses.

    Args:
        tls_folder: folder of the private certificate authority.
        url: URL of the service.
        proxy_url: URL of the service's proxy.
        environ: environment of the caller, whose proxy exceptions are kept, except those that stand for AWS.
    """
    around = exceptions_within_aws(environ)
    return {
        BUNDLE_VARIABLE: str(tls_folder / CA_FILE),
        # Python's clients read the lower-case name first.
        "HTTPS_PROXY": proxy_url,
        "https_proxy": proxy_url,
        # The proxy refuses other servers of this machine, except entries of setting `reachable_networks`.
        **with_service([item for item in exceptions(environ) if item not in around], url),
    }
