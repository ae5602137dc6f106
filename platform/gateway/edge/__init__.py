"""The layer between the network and both planes: bounds on what a connection may send, on its times
and on the number of connections, and the clients' true addresses."""
