"""Models of which the data decides what runs: cut into programs, and a program of segments that runs these."""
