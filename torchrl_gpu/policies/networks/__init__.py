"""Networks, by what they look at."""
