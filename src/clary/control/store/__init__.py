"""Records that survive a restart: jobs, tags, metrics and leases in a database, logs in files.

The only place that imports SQLAlchemy.
"""
