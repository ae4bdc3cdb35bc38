"""Encoders: JPEG, H.264 and MP4 of frames of NumPy or torch."""
