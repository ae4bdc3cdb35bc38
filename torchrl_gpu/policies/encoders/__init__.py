"""Networks and agents that look at clips."""
