-- How much more a run may claim for training, in what batches are measured in, rollouts or tokens, and what the limit
-- rests on. One statement, so one snapshot. Not in groups: they may have any size. Of a group that is being played
-- `sizes` says what is expected of it, by its environment: of tokens nobody knows yet.
-- Locks: nothing.
-- Index: group_playing and group_ready (partial), batch_once_per_step.
SELECT
    run.state,
    run.live_version,
    least(run.live_version + 1 + %(max_async_level)s, run.max_steps) * %(batch)s::bigint
        + CASE WHEN batches.formed < run.max_steps THEN %(beyond)s::bigint ELSE 0 END
        - batches.formed * %(batch)s::bigint
        - (SELECT coalesce(sum(expected.size), 0)::bigint
           FROM rollouts_scoredgroup AS playing
           JOIN rollouts_runenvironment AS environment ON environment.id = playing.environment_id
           JOIN unnest(%(names)s::text[], %(sizes)s::bigint[]) AS expected(name, size) USING (name)
           WHERE playing.run_id = run.id AND playing.state = 'playing' AND playing.purpose = 'train')
        - (SELECT coalesce(sum(CASE WHEN %(is_tokens)s THEN token_count ELSE rollout_count END), 0)::bigint
           FROM rollouts_scoredgroup WHERE run_id = run.id AND state = 'ready') AS capacity
FROM rollouts_run AS run
CROSS JOIN LATERAL (
    SELECT coalesce(max(step) + 1, 0) AS formed FROM rollouts_batch WHERE run_id = run.id
) AS batches
WHERE run.id = %(run_id)s
