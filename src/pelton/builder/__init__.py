"""Builds engines from models in any format: single programs, scripts of several, and programs of sessions."""
