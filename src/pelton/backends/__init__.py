"""Back ends, one per kind of machine, which run steps."""
