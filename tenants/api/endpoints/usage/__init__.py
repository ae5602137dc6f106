"""How requests ended and what they cost: usage, prices, receipts, metrics."""
