"""Encoders of video clips, and the agent that learns behind one.

Networks over other observations are in `networks`. Read `clips.py` first (the base class), then `from_clips.py`; an
encoder of your own takes the decorator `register_encoder`.
"""
