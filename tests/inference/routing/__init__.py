"""How gateways know what is warm, and agents tell them."""
