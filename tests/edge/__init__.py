"""Tests of the edge in front of both planes, most of them with raw sockets."""
