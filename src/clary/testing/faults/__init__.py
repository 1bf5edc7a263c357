"""Injection of faults into a real service with real jobs, and the audit afterwards."""
