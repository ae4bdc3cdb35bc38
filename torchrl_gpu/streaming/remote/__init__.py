"""A server in a process of its own."""
