"""Series: blocks of numbers over time, roll-ups and queries over them. Pure."""
