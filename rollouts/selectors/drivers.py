"""Reads of drivers."""

from rollouts.models import DriverLoad, Run


def count(run: Run) -> int:
    """How many drivers play for a run: those that said so within the last minute."""
    return DriverLoad.objects.filter(run=run).count()
