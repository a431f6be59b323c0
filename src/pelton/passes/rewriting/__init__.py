"""The rewriting engine: patterns, rules as data, and reports of what they did and refused."""
