"""What every process does for itself: read settings, log, keep its tasks running, report its state."""
