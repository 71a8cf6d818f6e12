"""Graph rewrites: named patterns, each checked, counted and switchable."""
