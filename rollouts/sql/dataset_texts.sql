-- The beginning of the statements that compare what members say: of each member its messages, of a pair those of both;
-- of a corrected one the correction. Null: a rollout of which only tokens are known. Whose rollouts they are says which
-- of these the policy said.
-- Locks: nothing.
-- Index: dataset_member_position_once.
WITH texts AS (
    SELECT member.position, member.group_id, rollout.index, other.index AS other_index,
           CASE
               WHEN member.row IS NOT NULL THEN jsonb_build_array(
                   member.row -> 'prompt', member.row -> 'messages', member.row -> 'completion', member.row -> 'chosen',
                   member.row -> 'rejected', member.row -> 'token_ids'
               )
               WHEN rollout.messages <> '[]' OR label.edited IS NOT NULL
                   THEN jsonb_build_array(NULL, coalesce(label.edited, rollout.messages), other.messages)
           END AS text
    FROM rollouts_datasetmember AS member
    LEFT JOIN rollouts_rollout AS rollout ON rollout.id = member.rollout_id
    LEFT JOIN rollouts_rollout AS other ON other.id = member.other_id
    LEFT JOIN rollouts_label AS label ON label.id = member.correction_id
    WHERE member.version_id = %(version_id)s
)
