"""Experience: steps of environments, rollouts, counts of episodes."""
