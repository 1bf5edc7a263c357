"""Records that survive a restart: logs in files, all others in a database.

The only place that imports SQLAlchemy.
"""
