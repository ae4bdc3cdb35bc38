"""A policy as a service: observations in, actions out, over HTTP and WebSocket.

Here are what a policy adds to a stream server, batching, and a loop around a simulator. Not here are the web server
itself (`streaming.web`), how a policy is loaded (`policies.loading`) and robots' topics (`streaming.ros2`). Read
`server.py` first; `packing` has what packing adds.
"""
