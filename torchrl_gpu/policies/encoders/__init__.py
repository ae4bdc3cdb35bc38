"""Encoders of video clips, and agents that observe clips."""
