"""Requests from submission until their usage is final: placed, held, moved, streamed."""
