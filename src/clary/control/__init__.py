"""The service: the AWS API, job life, scheduling, storage and the engines that supply hosts."""
