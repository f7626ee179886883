-- How many more training groups of a run may be claimed, and what the limit rests on. One statement, so one snapshot.
-- It counts what batches are measured in, rollouts or tokens, not groups: submitted groups may have any size. Of a group
-- that is being played the tokens are not known yet, so `group` is what is expected of it.
-- Locks: nothing.
-- Index: group_playing and group_ready (partial), batch_once_per_step.
SELECT
    run.state,
    run.live_version,
    ceil((
        least(run.live_version + 1 + %(max_async_level)s, run.max_steps) * %(batch)s::bigint
        - coalesce((SELECT max(step) + 1 FROM rollouts_batch WHERE run_id = run.id), 0) * %(batch)s::bigint
        - (SELECT count(*) FROM rollouts_scoredgroup
           WHERE run_id = run.id AND state = 'playing' AND purpose = 'train') * %(group)s::bigint
        - (SELECT coalesce(sum(CASE WHEN %(is_tokens)s THEN token_count ELSE rollout_count END), 0)
           FROM rollouts_scoredgroup WHERE run_id = run.id AND state = 'ready')
    )::numeric / %(group)s)::bigint AS capacity
FROM rollouts_run AS run
WHERE run.id = %(run_id)s
