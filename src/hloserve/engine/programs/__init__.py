"""Programs: reading, checking, specialising and keeping them compiled."""
