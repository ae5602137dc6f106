"""Batch lines, which workers send to gateways over a socket of their own."""
