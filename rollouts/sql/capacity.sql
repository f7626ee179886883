-- How many more training groups of a run may be claimed, and what the limit rests on. One statement, so one snapshot.
-- It counts rollouts, not groups: submitted groups may have any size, and a batch is full by its rollouts.
-- Locks: nothing.
-- Index: group_playing and group_ready (partial), batch_once_per_step.
SELECT
    run.state,
    run.live_version,
    ceil((
        least(run.live_version + 1 + %(max_async_level)s, run.max_steps) * %(batch_size)s::bigint
        - coalesce((SELECT max(step) + 1 FROM rollouts_batch WHERE run_id = run.id), 0) * %(batch_size)s::bigint
        - (SELECT count(*) FROM rollouts_scoredgroup
           WHERE run_id = run.id AND state = 'playing' AND purpose = 'train') * %(group_size)s::bigint
        - (SELECT coalesce(sum(rollout_count), 0) FROM rollouts_scoredgroup WHERE run_id = run.id AND state = 'ready')
    )::numeric / %(group_size)s)::bigint AS capacity
FROM rollouts_run AS run
WHERE run.id = %(run_id)s
