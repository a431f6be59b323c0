"""Chooses each region's tactic: measures candidates on this machine and stores times in a timing cache."""
