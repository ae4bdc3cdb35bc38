"""A policy on a robot: ROS messages in, actions and pictures out, with or without an install of ROS."""
