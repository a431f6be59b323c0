"""Judges predictions of `pelton advise` by what was measured."""
