"""Dishwashing: how fast and how carefully to wash in a shift.

It is observed as numbers or as video. There are no policies for it here: those of `torchrl_gpu.policies` learn it. Read
`economics.py` first, then `dynamics.py` and `camera.py`; `env.py` wires them together.
"""
