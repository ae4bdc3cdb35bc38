"""What is particular to policies that wash dishes: the meaning of what they see and do."""
