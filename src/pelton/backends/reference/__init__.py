"""A device that is none: every step by the reference of its nodes, in memory that shows what nobody has written."""
