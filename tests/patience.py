"""How long tests wait for what has to come."""

PATIENCE = 3
"""Deadlines are those of two idle cores; a machine under test has neither, and may be half as fast."""
