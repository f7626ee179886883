"""For programs outside: send groups, play a run's problems, or its live policy. What is documented is imported here."""

from environments.client.group_client import Claims, GroupClient
from environments.client.http import ClientError, Refused, Unreachable
from environments.client.session_client import SessionClient
from environments.client.spool import SpoolFull
from environments.types import Claim

__all__ = ["Claim", "Claims", "ClientError", "GroupClient", "Refused", "SessionClient", "SpoolFull", "Unreachable"]
