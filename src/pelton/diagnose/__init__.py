"""What becomes of a model, why, and how exact it is."""
