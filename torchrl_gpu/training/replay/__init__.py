"""Replay on the device: buffers, priorities, codecs, files."""
