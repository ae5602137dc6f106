"""What requests became and cost: usage, prices, receipts, metrics."""
