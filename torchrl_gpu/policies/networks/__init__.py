"""Networks of agents, by type of observation."""
