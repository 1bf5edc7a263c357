"""SDK v2: get_execution_role(), default_bucket() and account_id(), which call STS at its fixed https address."""

import os

import sagemaker
from common_client import report

os.environ.pop("SAGEMAKER_ADMIN_CONFIG_OVERRIDE", None)
os.environ.pop("SAGEMAKER_USER_CONFIG_OVERRIDE", None)
session = sagemaker.Session()
report(role=sagemaker.get_execution_role(session), bucket=session.default_bucket(), account=session.account_id())
