"""The rewriting engine: patterns, rules as data, and reports of their matches and rejections."""
