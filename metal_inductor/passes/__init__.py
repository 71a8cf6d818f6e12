"""Graph rewrites, one a file: each checks that it is safe, and returns how often it applied."""
