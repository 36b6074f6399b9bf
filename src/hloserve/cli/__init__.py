"""The commands. Thin: each reads its arguments, calls one function elsewhere, prints the result.

Modules here import only click and the standard library at their top, so that `hloserve --help`
is instant; what a command needs is imported inside of it.
"""
