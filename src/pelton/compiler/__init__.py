"""From a model to an engine."""
