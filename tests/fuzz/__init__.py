"""Fuzzing with damaged models, random graphs and damaged engines in child processes that may not crash or hang."""
