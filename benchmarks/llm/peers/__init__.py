"""Programs that run in the Python of another runtime."""
