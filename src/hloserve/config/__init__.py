"""The node file: schema, loading, resolving."""
