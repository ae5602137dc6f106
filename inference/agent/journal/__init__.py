"""What the engine generated, on disk before it leaves, until it is in the ledger."""
