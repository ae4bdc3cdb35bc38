"""From frames to encoded pictures for many viewers, without a socket.

Here are streams, mailboxes, the encoder thread, curves and the messages of the protocol. Not here are the encoders
(`streaming.codecs`) and what listens and sends (`streaming.web`). Read `hub.py` first.
"""
