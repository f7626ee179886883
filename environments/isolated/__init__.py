"""Environments in processes of their own."""

from environments.isolated.frames import framed
from environments.isolated.process import EnvironmentDied, Isolated

__all__ = ["EnvironmentDied", "Isolated", "framed"]
