"""From scheduled kernels to Metal text."""
