"""The reference backend: runs every step by the reference of its nodes, in memory that marks unwritten bytes."""
