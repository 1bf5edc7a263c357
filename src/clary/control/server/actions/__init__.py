"""Actions of people on jobs besides the AWS API, one module an action."""
