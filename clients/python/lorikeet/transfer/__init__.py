"""What is sent and fetched: files in parts that go on where they broke off, adapters of a hub."""
