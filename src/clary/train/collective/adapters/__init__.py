"""Where frameworks are imported, each in a module of its own, and nowhere else in the train wing."""
