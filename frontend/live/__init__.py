"""What open pages are told as it changes: one socket a tab, one sample however many look."""
