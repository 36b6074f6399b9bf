"""What is served: registry, loader, hooks."""
