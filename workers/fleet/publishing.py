"""Make the newest policy version live: load it into every ready inference replica, read it back, then record it.

    WRITTEN ──▶ pause, load, label, resume on each replica at once ──▶ read back ──▶ LIVE
       ▲             └── one that fails becomes suspect and has to load the live version before it serves again
       ├── all failed: again after a while, until after MAX_FAILED_LOADS the run is given up
       └── it came to no node, which may have a full disk or be out of reach: again after a while

No transaction is open while a replica is talked to.
"""

import logging
from functools import partial

from django.utils import timezone

from rollouts.models import PolicyVersion, Replica, Run
from rollouts.reasons import Reason, ReasonCode
from rollouts.selectors import fleet
from rollouts.services.runs import policies, replicas
from rollouts.states import RunState
from workers.database import at_once
from workers.fleet.inference import InferenceError, WeightsNotBrought
from workers.fleet.lifecycle import UnrecoverableError
from workers.fleet.serving import admin_of, load

log = logging.getLogger(__name__)

MAX_FAILED_LOADS = 3
"""Times that no replica could load a version, after which that is taken for its own fault."""
AGAIN_S = 15.0
"""Until a version is tried again, and for each time that failed: meanwhile the live one is played."""
LONGEST_PAUSE_S = 60.0


def publish(run: Run) -> PolicyVersion | None:
    """Publish the version that should go live now; return it, or None when there is none or nobody can take it.

    Raises UnrecoverableError when nobody could take it MAX_FAILED_LOADS times.
    """
    version = policies.find_publishable(run)
    if version is None:
        return None
    serving = list(fleet.list_serving(run))
    if not serving and _needs_servers(run):
        return None
    failed = policies.failed_loads(version)
    pause_s = min(AGAIN_S * len(failed), LONGEST_PAUSE_S)
    if failed and (timezone.now() - failed[0].at).total_seconds() < pause_s:
        return None
    failures = at_once(partial(_load, version), serving)
    loaded = 0
    for replica, failure in zip(serving, failures, strict=True):
        if failure is not None:
            log.warning("%s: %s", replica.name, failure)
            replicas.suspect(replica, reason=failure)
        else:
            replicas.answered(replica, loaded_version=version.version)
            loaded += 1
    if not loaded and _needs_servers(run):
        told = [failure for failure in failures if failure is not None]
        # A server that was asked to load it says more of the version than one that it did not come to.
        reason = next((each for each in told if each.code == ReasonCode.VERSION_NOT_LOADED), told[0])
        policies.not_loaded(version, reason=reason)
        codes = [event.reason_code for event in policies.failed_loads(version)]
        times, complaint = codes.count(ReasonCode.VERSION_NOT_LOADED), reason.params["complaint"]
        if reason.code == ReasonCode.VERSION_NOT_LOADED and times >= MAX_FAILED_LOADS:
            hopeless = Reason(ReasonCode.VERSION_HOPELESS, version=version.version, times=times, complaint=complaint)
            raise UnrecoverableError(hopeless)
        return None
    return policies.published(version)


def _needs_servers(run: Run) -> bool:
    """Whether a version is live only once somebody serves it."""
    config = run.parsed
    if config.inference.replicas == 0:
        return False
    return run.state != RunState.FINISHING or config.evaluation is not None


def _load(version: PolicyVersion, replica: Replica) -> Reason | None:
    """Load a version into a replica; return what went wrong. Touches no row: it runs in a thread of its own."""
    try:
        with admin_of(replica) as admin:
            if admin.version() != version.version:
                stood_still_s = load(admin, replica, version)
                log.info("%s loaded version %s in %.2f s", replica.name, version.version, stood_still_s)
            served = admin.version()
    except WeightsNotBrought as error:
        return Reason(ReasonCode.VERSION_NOT_BROUGHT, version=version.version, complaint=str(error))
    except InferenceError as error:
        return Reason(ReasonCode.VERSION_NOT_LOADED, version=version.version, complaint=str(error))
    if served == version.version:
        return None
    complaint = f"it says that it serves {served}"
    return Reason(ReasonCode.VERSION_NOT_LOADED, version=version.version, complaint=complaint)
