"""The program representation: types, graphs, their text form, and their meaning."""
