-- Behind `dataset_candidates` and `decided`: pairs of rollouts of a group become members of a version. Where people
-- compared or corrected rollouts of a group they decide: of each two what was decided, and each correction against what
-- it corrects. Elsewhere it is the best beside the worst of each seat. A pair of another version stays the pair it is,
-- and is left out where no person made it and its rewards are too close.
-- Locks: nothing. The version's own row comes later in the same transaction, by the id that was drawn for it.
, by_people AS (
    SELECT group_id FROM decided WHERE other_id IS NOT NULL
    UNION
    SELECT group_id FROM words WHERE is_edit
),
good AS (
    SELECT *, row_number() OVER (PARTITION BY group_id, seat ORDER BY reward DESC, index) AS rank
    FROM candidates
    WHERE left_out IS NULL AND group_id NOT IN (SELECT group_id FROM by_people)
),
by_reward AS (
    SELECT DISTINCT ON (best.group_id, best.seat) best.rollout_id AS chosen, worst.rollout_id AS other
    FROM good AS best
    JOIN candidates AS worst ON worst.group_id = best.group_id AND worst.seat = best.seat
    WHERE best.rank = 1 AND worst.left_out IS DISTINCT FROM 'unscored' AND best.reward - worst.reward > %(min_gap)s
    ORDER BY best.group_id, best.seat, worst.reward, worst.index DESC
),
paired AS (
    SELECT rollout_id AS chosen, other_id AS other, compared.labels, false AS is_preferred,
           -- What was made of another version before it kept these labels is known by what people say.
           correction_id IS NOT NULL OR compared.labels <> '{}'
               OR EXISTS (
                   SELECT FROM decided
                   WHERE decided.other_id IS NOT NULL
                     AND (decided.rollout_id, decided.other_id)
                         IN ((member.rollout_id, member.other_id), (member.other_id, member.rollout_id))
               ) AS is_by_people
    FROM rollouts_datasetmember AS member
    CROSS JOIN LATERAL (
        SELECT ARRAY(
            SELECT id FROM rollouts_label WHERE id = ANY(member.labels) AND rollouts_label.other_id IS NOT NULL ORDER BY id
        ) AS labels
    ) AS compared
    WHERE version_id = %(parent_id)s AND other_id IS NOT NULL
    UNION ALL
    SELECT CASE word WHEN 'first' THEN rollout_id ELSE other_id END,
           CASE word WHEN 'first' THEN other_id ELSE rollout_id END, labels, true, true
    FROM decided
    WHERE other_id IS NOT NULL AND word IN ('first', 'other') AND %(parent_id)s IS NULL
    UNION ALL
    SELECT rollout_id, rollout_id, NULL, false, true
    FROM candidates
    WHERE correction_id IS NOT NULL AND %(parent_id)s IS NULL
    UNION ALL
    SELECT chosen, other, NULL, false, false
    FROM by_reward
    WHERE %(parent_id)s IS NULL
),
fitting AS (
    SELECT chosen.*, paired.other, worse.index AS other_index, paired.labels AS compared_by,
           row_number() OVER (
               PARTITION BY chosen.group_id, chosen.seat
               ORDER BY chosen.correction_id IS NULL, NOT is_preferred, chosen.reward DESC, chosen.index, worse.index
           ) AS rank
    FROM paired
    JOIN candidates AS chosen ON chosen.rollout_id = paired.chosen
    JOIN candidates AS worse ON worse.rollout_id = paired.other
    JOIN rollouts_rollout AS first ON first.id = paired.chosen
    JOIN rollouts_rollout AS second ON second.id = paired.other
    WHERE (chosen.left_out IS NULL OR (is_preferred AND chosen.left_out = 'accepted'))
      AND worse.left_out IS DISTINCT FROM 'unscored'
      AND (is_by_people OR %(min_gap)s = 0 OR chosen.reward - worse.reward > %(min_gap)s)
      -- A correction beside what it corrects; two rollouts that say the same teach nothing.
      AND (
          chosen.correction_id IS NOT NULL
          OR (first.id <> second.id AND (first.messages <> second.messages OR first.messages = '[]'))
      )
)
INSERT INTO rollouts_datasetmember (
    version_id, position, split, group_id, rollout_id, other_id, is_wanted, correction_id, labels, step
)
SELECT %(version_id)s, row_number() OVER (ORDER BY group_id, reward DESC, index, other_index) - 1,
       CASE
           WHEN ('x' || left(encode(sha256(convert_to(problem, 'UTF8')), 'hex'), 8))::bit(32)::bigint
               < %(validation_share)s * 4294967296 THEN 'eval'
           ELSE 'train'
       END,
       group_id, rollout_id, other, true, correction_id,
       nullif(coalesce(labels, '{}') || coalesce(compared_by, '{}'), '{}'),
       (
           SELECT batch.step FROM rollouts_batchitem AS item JOIN rollouts_batch AS batch ON batch.id = item.batch_id
           WHERE item.group_id = fitting.group_id AND item.replay = 0 AND batch.state = 'trained'
       )
FROM fitting
WHERE %(best)s IS NULL OR rank <= %(best)s
ORDER BY group_id, reward DESC, index, other_index
LIMIT %(limit)s
