"""Commands. Thin: parse arguments, call a room below, print."""
