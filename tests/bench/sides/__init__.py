"""What is measured: Lorikeet as production starts it, without its accounts, and its peers."""
