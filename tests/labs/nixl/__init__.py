"""Prefill and decode on two real engines, over NIXL (`make nixl`)."""
