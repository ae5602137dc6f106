"""The gateway: HTTP and websocket edges, admission, routing, and the streams in flight."""
