"""Fuzzing: models, graphs and engine files nobody would write, each run in a child process that may neither crash,
hang, nor eat memory."""
