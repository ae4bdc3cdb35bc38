"""The HTTP server of streams: routes, WebSockets, WebRTC, access and limits.

Not here are the streams themselves (`streaming.broadcast`) and the encoders (`streaming.codecs`). Read `service.py`
first, which listens, then `routes.py`; `static` holds the page.
"""
