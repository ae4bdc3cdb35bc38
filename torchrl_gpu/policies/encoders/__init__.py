"""Encoders of video clips, each with the decorator `register_encoder`, and agents that observe clips."""
