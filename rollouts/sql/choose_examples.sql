-- Behind `dataset_candidates`: the rollouts that are chosen become members of a version, groups oldest first, in each the
-- best first. What people wrote themselves is better than what was sampled.
-- Locks: nothing. The version's own row comes later in the same transaction, by the id that was drawn for it.
, ranked AS (
    SELECT *,
           row_number() OVER (
               PARTITION BY group_id, seat, is_wanted ORDER BY correction_id IS NULL, reward DESC, index
           ) AS rank
    FROM candidates
    WHERE left_out IS NULL
)
INSERT INTO rollouts_datasetmember (
    version_id, position, split, group_id, rollout_id, is_wanted, correction_id, labels, step
)
SELECT %(version_id)s, row_number() OVER (ORDER BY group_id, reward DESC, index) - 1,
       CASE
           WHEN ('x' || left(encode(sha256(convert_to(problem, 'UTF8')), 'hex'), 8))::bit(32)::bigint
               < %(validation_share)s * 4294967296 THEN 'eval'
           ELSE 'train'
       END,
       group_id, rollout_id, is_wanted, correction_id, labels,
       (
           SELECT batch.step FROM rollouts_batchitem AS item JOIN rollouts_batch AS batch ON batch.id = item.batch_id
           WHERE item.group_id = ranked.group_id AND item.replay = 0 AND batch.state = 'trained'
       )
FROM ranked
WHERE %(best)s IS NULL OR rank <= %(best)s OR NOT is_wanted
ORDER BY group_id, reward DESC, index
LIMIT %(limit)s
