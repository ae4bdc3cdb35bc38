"""Evaluation of policies: episodes, tables, plans and pictures.

Here is what every environment has; a task's own tables are in the folder of its name. Not here: when a run evaluates,
which Lightning says (`training.run`). Read `suite` first.
"""
