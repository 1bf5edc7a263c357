"""The report of a job's profile: one page of HTML with embedded pictures, and one JSON document per rule."""
