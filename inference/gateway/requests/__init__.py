"""Requests from their submission until their figures are final: placed, held, moved, streamed."""
