-- What people decided of groups, of their rollouts and of pairs of them: for each thing somebody spoke of its words, each
-- person's newest once, and the newest adjudicated word. Of two beside each other the one that was stored first is the
-- first, in whichever order they were spoken of. Of blind queues that are open nothing is read.
-- Reads every word on these groups.
-- Locks: nothing.
-- Index: label_by_group, the unique one of supersedes_id.
WITH counting AS (
    SELECT label.id, label.group_id, label.actor, coalesce(label.person_id::text, label.actor) AS person,
           CASE WHEN is_turned THEN label.other_id ELSE label.rollout_id END AS rollout_id,
           CASE WHEN is_turned THEN label.rollout_id ELSE label.other_id END AS other_id,
           CASE
               WHEN is_turned AND label.preference = 'first' THEN 'other'
               WHEN is_turned AND label.preference = 'other' THEN 'first'
               ELSE coalesce(nullif(label.preference, ''), label.verdict)
           END AS word,
           coalesce(queue.source_id IS NOT NULL, false) AS is_adjudicated
    FROM rollouts_label AS label
    LEFT JOIN rollouts_labelqueue AS queue ON queue.id = label.queue_id
    CROSS JOIN LATERAL (SELECT coalesce(label.other_id < label.rollout_id, false)) AS turned (is_turned)
    WHERE label.group_id = ANY(%(group_ids)s::bigint[])
      AND label.verdict IN ('accept', 'reject')
      AND (label.other_id IS NULL OR label.preference <> '')
      AND NOT coalesce(queue.is_blind AND queue.closed_at IS NULL, false)
      AND NOT EXISTS (SELECT FROM rollouts_label AS newer WHERE newer.supersedes_id = label.id)
),
adjudicated AS (
    SELECT DISTINCT ON (group_id, rollout_id, other_id) group_id, rollout_id, other_id, word, actor
    FROM counting
    WHERE is_adjudicated
    ORDER BY group_id, rollout_id, other_id, id DESC
),
newest AS (
    SELECT DISTINCT ON (group_id, rollout_id, other_id, person) group_id, rollout_id, other_id, word
    FROM counting
    WHERE NOT is_adjudicated
    ORDER BY group_id, rollout_id, other_id, person, id DESC
),
counted AS (
    SELECT group_id, rollout_id, other_id, jsonb_object_agg(word, people) AS words
    FROM (
        SELECT group_id, rollout_id, other_id, word, count(*) AS people
        FROM newest
        GROUP BY group_id, rollout_id, other_id, word
    ) AS said
    GROUP BY group_id, rollout_id, other_id
),
things AS (
    SELECT group_id, rollout_id, other_id FROM counted
    UNION
    SELECT group_id, rollout_id, other_id FROM adjudicated
)
SELECT things.group_id, things.rollout_id, things.other_id, one.index, other.index, counted.words, adjudicated.word,
       adjudicated.actor
FROM things
LEFT JOIN counted ON counted.group_id = things.group_id
    AND counted.rollout_id IS NOT DISTINCT FROM things.rollout_id
    AND counted.other_id IS NOT DISTINCT FROM things.other_id
LEFT JOIN adjudicated ON adjudicated.group_id = things.group_id
    AND adjudicated.rollout_id IS NOT DISTINCT FROM things.rollout_id
    AND adjudicated.other_id IS NOT DISTINCT FROM things.other_id
LEFT JOIN rollouts_rollout AS one ON one.id = things.rollout_id
LEFT JOIN rollouts_rollout AS other ON other.id = things.other_id
ORDER BY things.group_id, one.index NULLS FIRST, other.index NULLS FIRST
