"""The ledger of what requests cost, and figures of how requests ended."""
