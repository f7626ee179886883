-- Put into a queue what people disagree on in another: items on which the words that count are not all the same. Those
-- of which somebody spoke first come first; at most as many as are asked for.
-- Reads every word of the other queue, and the items of this one.
-- Locks: nothing; the caller has the row of the queue that is filled.
-- Index: label_by_queue, the unique one of supersedes_id, queue_item_once_per_queue.
INSERT INTO rollouts_queueitem (queue_id, group_id, rollout_id, other_id)
SELECT %(queue_id)s, group_id, rollout_id, other_id
FROM (
    SELECT group_id, rollout_id, other_id, min(id) AS spoken_first
    FROM rollouts_label AS label
    WHERE queue_id = %(source_id)s
      AND verdict IN ('accept', 'reject')
      AND (other_id IS NULL OR preference <> '')
      AND NOT EXISTS (SELECT FROM rollouts_label AS newer WHERE newer.supersedes_id = label.id)
    GROUP BY group_id, rollout_id, other_id
    HAVING count(DISTINCT coalesce(nullif(preference, ''), verdict)) > 1
) AS disputed
WHERE NOT EXISTS (
    SELECT FROM rollouts_queueitem AS item
    WHERE item.queue_id = %(queue_id)s AND item.group_id = disputed.group_id
      AND item.rollout_id IS NOT DISTINCT FROM disputed.rollout_id
      AND item.other_id IS NOT DISTINCT FROM disputed.other_id
)
ORDER BY spoken_first
LIMIT %(most)s
