"""Which tactic runs each region: candidates, measured on this machine, remembered in a timing cache."""
