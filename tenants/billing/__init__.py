"""The ledger: usage events and their sums, prices, receipts, and the proof that it is exact."""
