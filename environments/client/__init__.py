"""For environments outside: send groups, or play a run's problems. What is documented is imported from here."""

from environments.client.group_client import Claims, GroupClient
from environments.client.http import ClientError, Refused, Unreachable
from environments.client.spool import SpoolFull
from environments.types import Claim

__all__ = ["Claim", "Claims", "ClientError", "GroupClient", "Refused", "SpoolFull", "Unreachable"]
