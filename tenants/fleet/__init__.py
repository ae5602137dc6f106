"""What all gateways know together of engines and limits, asked for by processes without a hub."""
