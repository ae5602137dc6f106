"""The playground's socket: answers that outlive a dropped connection."""
