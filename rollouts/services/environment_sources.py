"""Keep the code of environments that are played."""

from environments import sources
from rollouts.models import EnvironmentSource
from rollouts.storable import MAX_ENVIRONMENT_VERSION, displayable, displayable_values


def note(name: str, version: str) -> None:
    """Keep what the code of this version is now, if it is not known. Code that is not found here is passed over."""
    files = displayable_values(sources.read(name))
    if files:
        row = EnvironmentSource(
            name=name,
            version=displayable(version)[:MAX_ENVIRONMENT_VERSION],
            sha256=sources.digest(files),
            files=files,
        )
        EnvironmentSource.objects.bulk_create([row], ignore_conflicts=True)
