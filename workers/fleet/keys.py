"""The keys of replicas and of lines: derived, so that they are stored nowhere and every worker knows them."""

from django.utils.crypto import salted_hmac


def key_of(token: str) -> str:
    """The key that a replica demands, by its token."""
    return salted_hmac("rollyard.inference", token, algorithm="sha256").hexdigest()


def key_of_lines() -> str:
    """The key to the lines that workers on other machines come by."""
    return salted_hmac("rollyard.lines", "workers", algorithm="sha256").hexdigest()
