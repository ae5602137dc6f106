"""The URLs at which processes dial gateways."""

from __future__ import annotations

import pytest

from inference.link.urls import socket_url

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("gateway", "url"),
    [
        ("http://127.0.0.1:8000", "ws://127.0.0.1:8000/ws/engine"),
        ("https://api.example.com/", "wss://api.example.com/ws/engine"),
        ("https://example.com/lorikeet/", "wss://example.com/lorikeet/ws/engine"),
        ("http://[::1]:8000", "ws://[::1]:8000/ws/engine"),
    ],
)
def test_a_socket_is_dialled_below_the_gateways_address(gateway: str, url: str) -> None:
    assert socket_url(gateway, "/ws/engine") == url
