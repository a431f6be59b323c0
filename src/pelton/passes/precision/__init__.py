"""In which element types a program is computed and kept."""
