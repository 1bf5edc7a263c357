"""Deliberate faults at a real service with real jobs, and the audit afterwards."""
