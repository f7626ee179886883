"""What became of a job: from what SLURM says of it and what it wrote itself, without asking anybody anything.

What a job wrote counts more than any memory of SLURM's: that forgets jobs after minutes, and says of one that it was
asked to end that it has FAILED.
"""

from workers.launchers.base import End, Observation
from workers.slurm.files import Written
from workers.slurm.queue import Job

SUBMITTED_S = 30.0
"""After which a job that the queue does not have was never queued."""
ABSENT_S = 300.0
"""Of continuous absence, after which a job that had begun is gone."""
SILENT_S = 60.0
"""Without a sign of life from a job that is absent too: then it is gone, and nobody waits for the rest of ABSENT_S."""
START_S = 900.0
"""For which a job may have its nodes before its agent has said anything; a replica then has as long to answer."""
EXIT_S = 60.0
"""Since the command ended, after which nobody waits for SLURM to say by what: the node may hang in its epilog."""
AWAY = "SLURM does not answer"
_ENDS = {
    "CANCELLED": End.CANCELLED,
    "DEADLINE": End.TIME_LIMIT,
    "TIMEOUT": End.TIME_LIMIT,
    "NODE_FAIL": End.NODE_FAILED,
    "BOOT_FAIL": End.NODE_FAILED,
    "OUT_OF_MEMORY": End.OUT_OF_MEMORY,
    "PREEMPTED": End.PREEMPTED,
    "REVOKED": End.CANCELLED,
}
_REASONS = {
    "Resources": "no node with what it wants is free",
    "Priority": "others have their turn before it",
    "JobHeldUser": "somebody holds it: scontrol release {number}",
    "JobHeldAdmin": "an administrator of SLURM holds it: scontrol release {number}",
    "BeginTime": "SLURM starts it only at a set time: scontrol release {number}",
    "Dependency": "it waits for another job",
    "PartitionDown": "its partition is down",
    "PartitionTimeLimit": "it wants more time than its partition allows",
    "PartitionNodeLimit": "it wants more than its partition has",
    "Licenses": "it waits for a licence",
    "None": "SLURM has not looked at it yet",
}


def is_unheard(job: Job, written: Written) -> bool:
    """Whether a job has its nodes and its agent has said nothing yet. One that says where it listens may wait for its
    files, and gives up by itself."""
    is_running = job.state == "RUNNING" and not job.comment.startswith("http")
    return not written.has_begun and (is_running or job.state == "COMPLETING")


def judge(
    job: Job | None,
    written: Written,
    *,
    absent_s: float | None,
    submitted_s: float,
    unheard_s: float = 0.0,
    completing_s: float = 0.0,
) -> Observation:
    """What is to be said of a replica now.

    `absent_s`: seconds for which SLURM has been saying that there is no such job; None where it has one, or does not
    answer (then `job` is None too). `submitted_s`: seconds since it was given to SLURM. `unheard_s`: for which
    `is_unheard` has held. `completing_s`: for which SLURM has been ending it.
    """
    age_s = written.heartbeat_age_s
    if written.exit is not None:
        is_left = job is not None and not job.has_ended and not written.was_stopped
        if is_left and (written.exit_age_s or 0.0) < EXIT_S:
            return Observation(True)  # by what it was ended, SLURM says only when it is gone
        end = _end_of(End(written.exit.get("end", "")), job, written)
        return Observation(False, written.exit.get("code"), age_s, end, written.exit.get("excess", {}))
    if job is None:
        return _of_unknown(written, absent_s, submitted_s)
    if job.has_ended:
        without_a_word = End.DIED if written.is_spread else End.UNWATCHED
        end = _ENDS.get(job.state) or written.end or (without_a_word if written.has_begun else End.UNSTARTED)
        return Observation(False, None, age_s, end)
    if job.state == "RUNNING" and written.has_begun:
        return Observation(True, None, age_s, base_url=written.base_url, heartbeat_at=written.heartbeat_at)
    # Both: the heart of one that was suspended has not beaten for long, and it may yet write its end.
    if job.state == "COMPLETING" and min(completing_s, written.silent_s or 0.0) > ABSENT_S:
        return Observation(False, None, written.silent_s, End.SILENT)
    if job.state in ("COMPLETING", "SUSPENDED", "STOPPED") and written.has_begun:
        # Its heart does not beat, and that says nothing.
        return Observation(True, None, age_s, base_url=written.base_url)
    if unheard_s > START_S:
        return Observation(False, end=End.UNSTARTED, words=_of_unheard(job, unheard_s))
    return Observation(True, waiting=words_for(job))


def _of_unheard(job: Job, unheard_s: float) -> str:
    return (
        f"job {job.number} has had {job.node} for {unheard_s / 60:.0f} minutes without a word of its agent: does the "
        "node see the home and the interpreter? `rollyard doctor --cluster` runs a job that looks"
    )


def _end_of(end: End, job: Job | None, written: Written) -> End:
    """Why a command has ended that was seen to: SLURM may have ended it, and its shepherd cannot know."""
    if end is End.LIMIT or written.was_stopped:
        return End.ASKED if end is End.ABANDONED else end
    if written.end is End.TIME_LIMIT:
        return End.TIME_LIMIT
    if job is not None and job.state in _ENDS:
        return _ENDS[job.state]
    if written.end is End.DIED:
        return End.DIED  # on another node
    if end in (End.ASKED, End.ABANDONED):
        # By nobody that we know of; or, with a job that has failed, for another node's sake.
        return End.CANCELLED if job is None or not job.has_ended else End.DIED
    return end


def _of_unknown(written: Written, absent_s: float | None, submitted_s: float) -> Observation:
    age_s = written.heartbeat_age_s
    if absent_s is None:
        if written.has_begun:
            # Whether it is silent because its node is gone, SLURM will say once it is back.
            return Observation(True, base_url=written.base_url)
        return Observation(True, waiting=AWAY)
    is_silent = absent_s >= SUBMITTED_S and (written.silent_s or 0.0) > SILENT_S
    if written.has_begun and absent_s < ABSENT_S and not is_silent:
        return Observation(True, base_url=written.base_url)
    if written.has_begun:
        return Observation(False, None, age_s, End.VANISHED)
    if submitted_s < SUBMITTED_S or absent_s < SUBMITTED_S:
        return Observation(True, waiting="it is being given to SLURM")
    return Observation(False, end=End.UNSTARTED)


def words_for(job: Job) -> str:
    """Why a job is not at work yet, in a sentence without its end."""
    if job.state == "RUNNING" or job.state == "CONFIGURING":
        return f"job {job.number} starts on {job.node or 'its node'}"
    if job.state != "PENDING":
        return f"job {job.number} is {job.state.lower()}"
    begins = (f"{words} ({job.because})" for start, words in _BEGINNINGS.items() if job.because.startswith(start))
    why = _REASONS.get(job.because) or next(begins, job.because)
    avoided = f"; it is not to have {job.avoids}" if job.avoids else ""
    return f"job {job.number} is queued: {why.replace('{number}', job.number)}{avoided}"


_BEGINNINGS = {
    "Nodes required for job": "the nodes that it may have are down, drained or reserved",
    "ReqNodeNotAvail": "the nodes that it wants are down, drained or reserved",
    "QOS": "a limit of its quality of service is reached",
    "Assoc": "a limit of its account is reached",
    "MaxJobs": "so many jobs are not allowed at a time",
}
