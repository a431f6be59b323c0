"""Language models, measured beside other engines."""
