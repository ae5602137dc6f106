"""What a gateway measures and reports about its requests: metrics, the log, spans."""
