"""`python -m metal_inductor demo`: a real language model answers a question, and a table shows what that took."""
