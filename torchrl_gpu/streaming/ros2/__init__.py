"""A policy on a robot: ROS messages in, actions and pictures out.

It runs with or without an install of ROS. Here are the bridge, its threads, the messages and one file per middleware.
Not here are pictures for browsers (`streaming.server`) and packing sessions (`palletizing.sessions`). Read `bridge.py`
first, then `control.py`.
"""
