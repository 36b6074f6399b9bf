"""JAX: tracing functions, what they close over, and what must not be in a program."""
