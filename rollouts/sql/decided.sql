-- Behind `words_on_groups` and `dataset_candidates`: what people decided of groups, of their rollouts and of pairs of
-- them, the one rule of it. The newest adjudicated word decides; else the word of more than half of those who say
-- something, each by their newest one, and of a pair a tie is a word; else none. Of two beside each other the one that was
-- stored first is the first, in whichever order they were spoken of.
-- Locks: nothing.
, spoken AS (
    SELECT id, group_id, actor, person, is_adjudicated,
           CASE WHEN is_turned THEN other_id ELSE rollout_id END AS rollout_id,
           CASE WHEN is_turned THEN rollout_id ELSE other_id END AS other_id,
           CASE
               WHEN is_turned AND preference = 'first' THEN 'other'
               WHEN is_turned AND preference = 'other' THEN 'first'
               ELSE coalesce(nullif(preference, ''), verdict)
           END AS word
    FROM words
    CROSS JOIN LATERAL (SELECT coalesce(other_id < rollout_id, false)) AS turned (is_turned)
    WHERE verdict IN ('accept', 'reject') AND (other_id IS NULL OR preference <> '')
),
adjudicated AS (
    SELECT DISTINCT ON (group_id, rollout_id, other_id) group_id, rollout_id, other_id, word, actor, id
    FROM spoken
    WHERE is_adjudicated
    ORDER BY group_id, rollout_id, other_id, id DESC
),
newest AS (
    SELECT DISTINCT ON (group_id, rollout_id, other_id, person) group_id, rollout_id, other_id, word, id
    FROM spoken
    WHERE NOT is_adjudicated
    ORDER BY group_id, rollout_id, other_id, person, id DESC
),
voices AS (
    SELECT *,
           count(*) OVER (PARTITION BY group_id, rollout_id, other_id, word) AS people,
           count(*) OVER (PARTITION BY group_id, rollout_id, other_id) AS all_people
    FROM newest
),
counted AS (
    SELECT group_id, rollout_id, other_id, jsonb_object_agg(word, people) AS words,
           max(word) FILTER (WHERE 2 * people > all_people) AS word, array_agg(id ORDER BY id) AS labels
    FROM voices
    GROUP BY group_id, rollout_id, other_id
),
things AS (
    SELECT group_id, rollout_id, other_id FROM counted
    UNION
    SELECT group_id, rollout_id, other_id FROM adjudicated
),
decided AS (
    SELECT things.*, counted.words, coalesce(adjudicated.word, counted.word, '') AS word,
           CASE
               WHEN adjudicated.id IS NOT NULL THEN 'adjudicated'
               WHEN counted.word IS NOT NULL THEN 'majority'
               ELSE 'undecided'
           END AS how,
           coalesce(adjudicated.actor, '') AS actor,
           CASE WHEN adjudicated.id IS NULL THEN counted.labels ELSE ARRAY[adjudicated.id] END AS labels
    FROM things
    LEFT JOIN counted ON counted.group_id = things.group_id
        AND counted.rollout_id IS NOT DISTINCT FROM things.rollout_id
        AND counted.other_id IS NOT DISTINCT FROM things.other_id
    LEFT JOIN adjudicated ON adjudicated.group_id = things.group_id
        AND adjudicated.rollout_id IS NOT DISTINCT FROM things.rollout_id
        AND adjudicated.other_id IS NOT DISTINCT FROM things.other_id
)
