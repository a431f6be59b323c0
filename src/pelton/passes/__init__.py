"""Graph rewriting: rules as data, and passes that report their changes."""
