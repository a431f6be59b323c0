"""Probes of `pelton doctor`: facts about a machine, from files below a root. Missing files leave facts unknown."""
