-- The scored rollouts of some groups, best first in each; JSON stays text, for whoever passes it on. Of a run that an
-- endpoint plays (`is_spoken`) they have no tokens; of others one without is of a seat that was never asked.
-- A group that somebody rejects is left out, and a rollout is told as rejected; a word in a blind queue counts when
-- that is closed.
-- Locks: nothing. Everything read here is insert-only.
-- Index: rollout_index_once_per_group, label_by_group.
WITH rejected AS (
    SELECT label.group_id, label.rollout_id
    FROM rollouts_label AS label
    LEFT JOIN rollouts_labelqueue AS queue ON queue.id = label.queue_id
    WHERE label.group_id = ANY(%(group_ids)s) AND label.verdict = 'reject' AND label.other_id IS NULL
      AND (queue.id IS NULL OR NOT queue.is_blind OR queue.closed_at IS NOT NULL)
      AND NOT EXISTS (SELECT FROM rollouts_label AS newer WHERE newer.supersedes_id = label.id)
)
SELECT group_id, index, coalesce(grp.given_rewards[index + 1], reward), stop_reason, messages::text, tools::text,
       earlier_branches::text, seat,
       EXISTS (SELECT FROM rejected WHERE rejected.rollout_id = rollout.id) AS is_rejected
FROM rollouts_rollout AS rollout JOIN rollouts_scoredgroup AS grp ON grp.id = group_id
WHERE group_id = ANY(%(group_ids)s) AND reward IS NOT NULL AND (trained_token_count > 0 OR %(is_spoken)s)
  AND NOT EXISTS (SELECT FROM rejected WHERE rejected.group_id = rollout.group_id AND rejected.rollout_id IS NULL)
ORDER BY group_id, 3 DESC, index
