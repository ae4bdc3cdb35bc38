"""Encoders: JPEG, H.264 and MP4 of frames of NumPy or torch.

Not here is who is sent what (`streaming.broadcast`). Read `images.py` first, which says what a frame is, then
`encoder.py`: a codec of streams is a class with `encode` and `close`, and a line in its `CODECS`.
"""
