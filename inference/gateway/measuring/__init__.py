"""What a gateway measures of its requests, and tells of each: metrics, the log, spans."""
