"""Whether somebody chose to let the code of runs live beside the control plane instead of in sandboxes."""

import os

VARIABLE = "ROLLYARD_UNSAFE_NO_SANDBOX"
"""Set to 1, code of runs reaches all that the control plane reaches. For machines without namespaces whose every user
may have everything."""


def is_unconfined() -> bool:
    """Whether the variable says so."""
    return os.environ.get(VARIABLE, "").strip() == "1"
