"""The report of a job's profile: one page of HTML with its pictures in it, and a JSON document a rule."""
