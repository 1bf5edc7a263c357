"""Actions of users on jobs beside the AWS API, one module an action."""
