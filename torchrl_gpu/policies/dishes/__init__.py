"""What is particular to policies that wash dishes.

Here: the meaning of what they see and do. The environment is in `envs/dishes`, agents are those of `policies/agents`.
"""
