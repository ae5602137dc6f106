"""What stands between the network and both planes: what a connection may send, how long it may
take, how many there may be, and whose they are."""
