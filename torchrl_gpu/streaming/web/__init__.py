"""The HTTP server of a stream: routes, WebSockets, access."""
