"""A bundle against its source on an author's own samples."""
