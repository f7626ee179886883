-- What the replicas of a run have had to themselves, by kind, in whole seconds: of each second of a replica so many GPU-
-- and core-seconds as it has GPUs and cores. How many of them it started, was ready, and of those was idle; of a trainer,
-- how many of the ready ones went into steps.
--
-- A server starts until it answers. A trainer starts until its first step begins, which is known once that is done. A job
-- that waits for its node has nothing; a process of this machine is charged for from its row on.
-- Locks: nothing.
-- Index: event_by_object, metric_point_once_per_step.
WITH lived AS (
    SELECT replica.id, replica.kind, coalesce(replica.gpus, 0) AS gpus, coalesce(replica.cores, 0) AS cores,
           replica.gpus IS NULL AS is_unknown, load.idle_s,
           CASE WHEN replica.launcher = 'local' THEN replica.created_at ELSE replica.begun_at END AS began,
           coalesce(replica.ended_at, now()) AS ended,
           (SELECT min(event.at) FROM rollouts_event AS event
            WHERE event.object_kind = 'replica' AND event.object_id = replica.id AND event.to_state = 'ready') AS answered
    FROM rollouts_replica AS replica
    LEFT JOIN rollouts_replicaload AS load ON load.replica_id = replica.id
    WHERE replica.run_id = %(run_id)s
),
stepped AS (
    SELECT lived.id, min(point.recorded_at - point.value * interval '1 second') AS stepped_at,
           sum(point.value - coalesce(wait.value, 0)) AS stepping_s
    FROM lived
    JOIN rollouts_metricpoint AS point
        ON point.run_id = %(run_id)s AND point.key = 'time/step'
        AND point.recorded_at BETWEEN lived.answered AND lived.ended
    LEFT JOIN rollouts_metricpoint AS wait
        ON wait.run_id = point.run_id AND wait.key = 'time/wait_for_batch' AND wait.step = point.step
    WHERE lived.kind = 'trainer'
    GROUP BY lived.id
),
timed AS (
    SELECT lived.*, coalesce(stepped.stepping_s, 0) AS stepping_s,
           extract(epoch FROM ended - began) AS lived_s,
           CASE WHEN kind = 'trainer' THEN extract(epoch FROM stepped_at - began)
                ELSE extract(epoch FROM answered - lived.began) END AS starting_s
    FROM lived
    LEFT JOIN stepped USING (id)
),
whole AS (
    SELECT kind, gpus, cores, is_unknown, round(greatest(lived_s, 0))::bigint AS lived,
           round(least(greatest(coalesce(starting_s, lived_s), 0), greatest(lived_s, 0)))::bigint AS starting,
           coalesce(idle_s, 0) AS idle_s, stepping_s
    FROM timed
    WHERE began IS NOT NULL
),
split AS (
    SELECT kind, gpus, cores, is_unknown, starting, lived - starting AS ready,
           least(round(idle_s)::bigint, lived - starting) AS idle,
           least(round(stepping_s)::bigint, lived - starting) AS stepping
    FROM whole
)
SELECT kind, count(*) FILTER (WHERE is_unknown),
       sum(starting * gpus)::bigint, sum(ready * gpus)::bigint, sum(idle * gpus)::bigint, sum(stepping * gpus)::bigint,
       sum(starting * cores)::bigint, sum(ready * cores)::bigint, sum(idle * cores)::bigint, sum(stepping * cores)::bigint
FROM split
GROUP BY kind
