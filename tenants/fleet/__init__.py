"""What the gateways together know of engines and limits, for processes without a hub."""
