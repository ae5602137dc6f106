"""What every process does for itself: settings, logs, background tasks, news for its supervisor."""
