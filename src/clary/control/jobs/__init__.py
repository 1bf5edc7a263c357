"""Pure rules of a training job: its record, transitions, validation, deadlines and orders."""
