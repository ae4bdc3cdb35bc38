"""A policy as a service: observations in, actions out, over HTTP and WebSocket."""
