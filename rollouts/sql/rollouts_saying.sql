-- Which rollouts of some groups have a text in what the policy said or thought, in whichever branch, in upper or lower
-- case as far as the locale of the database knows: in C from a to z. A reply in parts is looked through as the JSON of
-- its parts.
-- Reads every message of these rollouts: whoever calls bounds the groups.
-- Locks: nothing.
-- Index: rollout_index_once_per_group.
SELECT rollout.id
FROM rollouts_rollout AS rollout
WHERE rollout.group_id = ANY(%(group_ids)s::bigint[])
  AND EXISTS (
    SELECT FROM (
        SELECT jsonb_path_query(rollout.messages, '$[*] ? (@.role == "assistant")')
        UNION ALL
        SELECT jsonb_path_query(rollout.earlier_branches, '$[*][*] ? (@.role == "assistant")')
    ) AS said (reply)
    WHERE strpos(lower(reply ->> 'content'), lower(%(text)s::text)) > 0
       OR strpos(lower(reply ->> 'reasoning_content'), lower(%(text)s::text)) > 0
  )
