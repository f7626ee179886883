-- The members of a version as lines that its digest is made of, in their order: what is learned, by public names. What
-- people said of them is not in it: a word more on the same rollout makes no other version. Nor is the order of the keys
-- of a row.
-- Locks: nothing.
-- Index: dataset_member_position_once.
SELECT jsonb_build_array(
           run.key, scored.key, rollout.index, other.index, member.is_wanted, member.split, label.key,
           member.row::jsonb
       )::text
FROM rollouts_datasetmember AS member
LEFT JOIN rollouts_scoredgroup AS scored ON scored.id = member.group_id
LEFT JOIN rollouts_run AS run ON run.id = scored.run_id
LEFT JOIN rollouts_rollout AS rollout ON rollout.id = member.rollout_id
LEFT JOIN rollouts_rollout AS other ON other.id = member.other_id
LEFT JOIN rollouts_label AS label ON label.id = member.correction_id
WHERE member.version_id = %(version_id)s
ORDER BY member.position
