"""Talk to a server: the blocking client."""
