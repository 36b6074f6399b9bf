"""Exports from the command line: targets, YAML lists, reports."""
