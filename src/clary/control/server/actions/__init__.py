"""What people may do to jobs besides the AWS API, one module an act."""
