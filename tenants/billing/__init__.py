"""The ledger: usage events and their sums, prices, receipts, quarantine and reconciliation."""
