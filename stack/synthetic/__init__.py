"""Models written down by hand, whose greedy output and acceptance are known before a server starts."""
