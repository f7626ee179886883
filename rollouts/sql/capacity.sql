-- How much more a run may claim for training, in what batches are measured in, rollouts or tokens, what the limit rests
-- on, of which environments there is too much, and whether problems of an evaluation are left. One statement, so one
-- snapshot. Not in groups: they may have any size. Of a group that is being played `sizes` says what is expected of it,
-- by its environment: of tokens nobody knows yet.
-- Of what is held for people the share of the environment counts that goes through their hands: a run that lives on
-- people alone waits for them, one of which they look at a tenth goes on with the rest.
-- What is too old for every batch to come counts for nothing, whenever somebody looks at it.
-- Of what environments from outside have brought no more counts than batches by their weights would take of them: who
-- brings more than that keeps nobody else from playing.
-- What is begun beyond a batch is for one that is still to be formed: after the last that may be ahead nothing is begun.
-- There is too much of an environment where its oldest group was passed over by more batches than may be ahead, and a
-- batch is there without more: what is dropped of others would have it fill the queue, and grow stale there.
-- Locks: nothing.
-- Index: group_playing, group_ready and group_held (partial), batch_once_per_step, that of the runs of evaluations.
WITH ready AS MATERIALIZED (
    SELECT
        environment.id,
        environment.weight,
        environment.name = ANY (%(names)s::text[]) AS is_own,
        sum(CASE WHEN %(is_tokens)s THEN token_count ELSE rollout_count END)::bigint AS size,
        min(state_at) AS since
    FROM rollouts_scoredgroup AS waiting
    JOIN rollouts_runenvironment AS environment ON environment.id = waiting.environment_id
    WHERE waiting.run_id = %(run_id)s AND waiting.state = 'ready'
    GROUP BY environment.id
)
SELECT
    run.state,
    run.live_version,
    room.size
        - (SELECT coalesce(sum(expected.size), 0)::bigint
           FROM rollouts_scoredgroup AS playing
           JOIN rollouts_runenvironment AS environment ON environment.id = playing.environment_id
           JOIN unnest(%(names)s::text[], %(sizes)s::bigint[]) AS expected(name, size) USING (name)
           WHERE playing.run_id = run.id AND playing.state = 'playing' AND playing.purpose = 'train')
        - (SELECT coalesce(sum(size) FILTER (WHERE is_own), 0)::bigint FROM ready)
        - (SELECT least(
               coalesce(sum(size), 0),
               room.size * coalesce(sum(weight) / (sum(weight) + own.weight), 0)
           )::bigint
           FROM ready WHERE NOT is_own)
        - (SELECT coalesce(sum(CASE WHEN %(is_tokens)s THEN token_count ELSE rollout_count END * expected.share), 0)::bigint
           FROM rollouts_scoredgroup AS held
           JOIN rollouts_runenvironment AS environment ON environment.id = held.environment_id
           JOIN unnest(%(names)s::text[], %(shares)s::float8[]) AS expected(name, share) USING (name)
           WHERE held.run_id = run.id AND held.state = 'held'
               AND coalesce(held.min_policy_version, batches.formed) >= batches.formed - %(max_off_policy_steps)s) AS capacity,
    ARRAY(
        SELECT ready.id
        FROM ready
        JOIN (
            SELECT formed_at FROM rollouts_batch WHERE run_id = run.id
            ORDER BY step DESC OFFSET %(steps_ahead)s + 1 LIMIT 1
        ) AS last ON ready.since < last.formed_at
        WHERE is_own AND (SELECT sum(size) FROM ready) >= %(batch)s::bigint
    ) AS abundant,
    EXISTS (
        SELECT FROM rollouts_evaluation AS evaluation
        WHERE evaluation.run_id = run.id AND evaluation.state = 'playing' AND evaluation.cursor < evaluation.problems
    ) AS is_evaluated
FROM rollouts_run AS run
CROSS JOIN LATERAL (
    SELECT
        coalesce(max(step) + 1, 0) AS formed,
        least(run.live_version + 1 + %(steps_ahead)s, run.max_steps) AS allowed
    FROM rollouts_batch WHERE run_id = run.id
) AS batches
CROSS JOIN LATERAL (
    SELECT
        (batches.allowed - batches.formed) * %(batch)s::bigint
            + CASE WHEN batches.formed < batches.allowed THEN %(beyond)s::bigint ELSE 0 END AS size
) AS room
CROSS JOIN LATERAL (
    SELECT sum(weight) AS weight FROM rollouts_runenvironment
    WHERE run_id = run.id AND name = ANY (%(names)s::text[])
) AS own
WHERE run.id = %(run_id)s
