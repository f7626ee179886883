-- The beginning of `decisions`: what counts of what people said of some groups. Of blind queues that are open nothing is
-- read.
-- Reads every word on these groups.
-- Locks: nothing.
-- Index: label_by_group, the unique one of supersedes_id.
WITH words AS (
    SELECT label.id, label.group_id, label.rollout_id, label.other_id, label.verdict, label.preference, label.actor,
           coalesce(label.person_id::text, label.actor) AS person,
           coalesce(queue.source_id IS NOT NULL, false) AS is_adjudicated
    FROM rollouts_label AS label
    LEFT JOIN rollouts_labelqueue AS queue ON queue.id = label.queue_id
    WHERE label.group_id = ANY(%(group_ids)s::bigint[])
      AND NOT coalesce(queue.is_blind AND queue.closed_at IS NULL, false)
      AND NOT EXISTS (SELECT FROM rollouts_label AS newer WHERE newer.supersedes_id = label.id)
)
