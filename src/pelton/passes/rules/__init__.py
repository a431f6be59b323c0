"""The rules, by what they are for."""
