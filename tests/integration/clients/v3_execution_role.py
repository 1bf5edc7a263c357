"""SDK v3: IamRoleResolver makes an execution role, validates it, and removes it, with its own policies and tags."""

import boto3
from common_client import report
from sagemaker.core.helper import iam_role_resolver

iam_role_resolver._IAM_PROPAGATION_DELAY_SECONDS = 0  # a wait for AWS's copies of a new role
resolver = iam_role_resolver.IamRoleResolver()
made = resolver.create_execution_role("training")
named = resolver.create_execution_role("training", role_name="AmazonSageMaker-ExecutionRole-mine", s3_resource="clary")
validated = resolver.resolve_and_validate_role(named, role_type="training")
resolver.delete_execution_role("training")
pages = (
    boto3.client("iam")
    .get_paginator("list_roles")
    .paginate(PathPrefix="/service-role/", PaginationConfig={"PageSize": 1})
)
found = [role["Arn"] for page in pages for role in page["Roles"] if "AmazonSageMaker-ExecutionRole" in role["RoleName"]]
report(made=made, named=named, validated=validated, found=found)
