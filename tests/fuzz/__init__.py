"""Fuzzing with damaged models, random graphs and damaged engines in child processes, which must not crash or hang."""
