"""Compression: weights of trained models in few bits, with zeros, or with few values, within an accuracy bound."""
