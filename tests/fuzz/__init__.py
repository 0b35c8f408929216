"""Damaged files thrown at the readers: no crash, no hang, no unbounded memory."""
