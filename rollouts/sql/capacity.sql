-- How many more training groups of a run may be claimed, and what the limit rests on. One statement, so one snapshot.
-- Locks: nothing.
-- Index: group_playing and group_ready (partial), batch_once_per_step.
SELECT
    run.state,
    run.live_version,
    least(run.live_version + 1 + %(max_async_level)s, run.max_steps) * %(groups_per_batch)s
    - coalesce((SELECT max(step) + 1 FROM rollouts_batch WHERE run_id = run.id), 0) * %(groups_per_batch)s
    - (SELECT count(*) FROM rollouts_scoredgroup
       WHERE run_id = run.id AND state = 'playing' AND purpose = 'train')
    - (SELECT count(*) FROM rollouts_scoredgroup WHERE run_id = run.id AND state = 'ready') AS capacity
FROM rollouts_run AS run
WHERE run.id = %(run_id)s
