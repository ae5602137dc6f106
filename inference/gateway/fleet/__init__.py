"""The engines of a gateway: their links, which of them gets what, and the streams on them."""
