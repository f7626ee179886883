"""The keys of replicas and of lines, and the mark of this installation: derived, so that they are stored nowhere and
every worker knows them."""

from django.utils.crypto import salted_hmac


def key_of(token: str) -> str:
    """The key that a replica demands, by its token."""
    return salted_hmac("rollyard.inference", token, algorithm="sha256").hexdigest()


def key_of_lines() -> str:
    """The key to the lines that workers on other machines come by."""
    return salted_hmac("rollyard.lines", "workers", algorithm="sha256").hexdigest()


def mark_of_workers() -> str:
    """What the names of the jobs of this installation's workers have in them: eight characters. Another one of the
    same account has other workers."""
    return salted_hmac("rollyard.mark", "workers", algorithm="sha256").hexdigest()[:8]
