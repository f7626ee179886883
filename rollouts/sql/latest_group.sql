-- The newest training group of a run that was good enough to be queued, whatever became of it.
-- Locks: nothing.
-- Index: group_recent (partial), read from its end.
SELECT id FROM rollouts_scoredgroup
WHERE run_id = %(run_id)s AND settled_at IS NOT NULL AND purpose = 'train'
    AND state NOT IN ('failed', 'filtered') AND rollout_count > 0
ORDER BY settled_at DESC LIMIT 1
