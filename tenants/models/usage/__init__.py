"""The ledger of what requests cost, and figures of what became of each."""
