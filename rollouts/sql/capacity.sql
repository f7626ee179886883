-- How much more a run may claim for training, in what batches are measured in, rollouts or tokens, and what the limit
-- rests on. One statement, so one snapshot. Not in groups: they may have any size. Of a group that is being played
-- `sizes` says what is expected of it, by its environment: of tokens nobody knows yet.
-- Of what is held for people the share of the environment counts that goes through their hands: a run that lives on
-- people alone waits for them, one of which they look at a tenth goes on with the rest.
-- What is begun beyond a batch is for one that is still to be formed: after the last that may be ahead nothing is begun.
-- Locks: nothing.
-- Index: group_playing, group_ready and group_held (partial), batch_once_per_step.
SELECT
    run.state,
    run.live_version,
    batches.allowed * %(batch)s::bigint
        + CASE WHEN batches.formed < batches.allowed THEN %(beyond)s::bigint ELSE 0 END
        - batches.formed * %(batch)s::bigint
        - (SELECT coalesce(sum(expected.size), 0)::bigint
           FROM rollouts_scoredgroup AS playing
           JOIN rollouts_runenvironment AS environment ON environment.id = playing.environment_id
           JOIN unnest(%(names)s::text[], %(sizes)s::bigint[]) AS expected(name, size) USING (name)
           WHERE playing.run_id = run.id AND playing.state = 'playing' AND playing.purpose = 'train')
        - (SELECT coalesce(sum(CASE WHEN %(is_tokens)s THEN token_count ELSE rollout_count END), 0)::bigint
           FROM rollouts_scoredgroup WHERE run_id = run.id AND state = 'ready')
        - (SELECT coalesce(sum(CASE WHEN %(is_tokens)s THEN token_count ELSE rollout_count END * expected.share), 0)::bigint
           FROM rollouts_scoredgroup AS held
           JOIN rollouts_runenvironment AS environment ON environment.id = held.environment_id
           JOIN unnest(%(names)s::text[], %(shares)s::float8[]) AS expected(name, share) USING (name)
           WHERE held.run_id = run.id AND held.state = 'held') AS capacity
FROM rollouts_run AS run
CROSS JOIN LATERAL (
    SELECT
        coalesce(max(step) + 1, 0) AS formed,
        least(run.live_version + 1 + %(max_async_level)s, run.max_steps) AS allowed
    FROM rollouts_batch WHERE run_id = run.id
) AS batches
WHERE run.id = %(run_id)s
