"""Users' actions on jobs that the AWS API lacks, one module per group of actions."""
