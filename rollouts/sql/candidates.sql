-- The oldest ready groups of each environment and size, as many as one batch could hold: what a batch is chosen from.
-- Reads a bounded number of rows however long the queue is: it skips through the index from one (environment, size) to
-- the next. A group that is too old for the step is not read; one that would overtake more than `window` older groups
-- which are still being played waits, so that batches are not biased towards problems that are finished quickly.
-- Locks: nothing.
-- Index: group_ready, group_playing (partial).
WITH RECURSIVE kinds AS (
    (
        SELECT environment_id, rollout_count FROM rollouts_scoredgroup
        WHERE run_id = %(run_id)s AND state = 'ready'
        ORDER BY environment_id, rollout_count LIMIT 1
    )
    UNION ALL
    SELECT following.environment_id, following.rollout_count
    FROM kinds, LATERAL (
        SELECT environment_id, rollout_count FROM rollouts_scoredgroup
        WHERE run_id = %(run_id)s AND state = 'ready'
            AND (environment_id, rollout_count) > (kinds.environment_id, kinds.rollout_count)
        ORDER BY environment_id, rollout_count LIMIT 1
    ) AS following
), oldest_not_overtaken AS (
    SELECT coalesce((
        SELECT id FROM rollouts_scoredgroup
        WHERE run_id = %(run_id)s AND state = 'playing' AND purpose = 'train'
        ORDER BY id OFFSET %(window)s LIMIT 1
    ), 9223372036854775807) AS id
)
SELECT candidate.id, candidate.environment_id, candidate.rollout_count, candidate.token_count
FROM kinds, oldest_not_overtaken, LATERAL (
    SELECT id, environment_id, rollout_count, token_count FROM rollouts_scoredgroup
    WHERE run_id = %(run_id)s AND state = 'ready'
        AND environment_id = kinds.environment_id AND rollout_count = kinds.rollout_count
        AND id < oldest_not_overtaken.id AND min_policy_version >= %(oldest_version)s
    ORDER BY id LIMIT greatest(1, (%(rollouts)s::bigint + kinds.rollout_count - 1) / kinds.rollout_count)
) AS candidate
ORDER BY candidate.id
