"""The keys of replicas: derived, so that they are stored nowhere and every worker knows them."""

from django.utils.crypto import salted_hmac


def key_of(token: str) -> str:
    """The key that a replica demands, by its token."""
    return salted_hmac("rollyard.inference", token, algorithm="sha256").hexdigest()
