"""Diagnoses of a model: its operators, its build decisions, and its accuracy."""
