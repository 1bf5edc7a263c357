"""Where hosts come from: one narrow interface, one folder per engine."""
