"""The agent's main program: one host of one attempt, from assignment to release."""
