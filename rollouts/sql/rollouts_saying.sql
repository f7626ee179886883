-- Which rollouts of some groups have a text in what an assistant said or thought, in whichever branch, in upper or lower
-- case as far as the locale of the database knows: in C from a to z. A reply in parts is looked through as the JSON of
-- its parts. Of each branch, the last one last, `nearest` says in which of the assistant's messages the text is: the how
-- many-th from the end, of several the last; null: in none. So whoever knows how many of them the policy said knows
-- whether it said the text: those before are examples in a prompt.
-- Reads every message of these rollouts: whoever calls bounds the groups.
-- Locks: nothing.
-- Index: rollout_index_once_per_group.
SELECT rollout.id, rollout.group_id, rollout.index, said.nearest
FROM rollouts_rollout AS rollout
CROSS JOIN LATERAL (
    SELECT array_agg(branch.nearest ORDER BY branch.number)::int[] AS nearest
    FROM (
        SELECT told.number, 1 + count(*) - max(reply.at) FILTER (
                   WHERE strpos(lower(reply.message ->> 'content'), lower(%(text)s::text)) > 0
                      OR strpos(lower(reply.message ->> 'reasoning_content'), lower(%(text)s::text)) > 0
               ) AS nearest
        FROM (
            SELECT 0 AS number, rollout.messages
            UNION ALL
            SELECT earlier.at - 1 - jsonb_array_length(rollout.earlier_branches), earlier.messages
            FROM jsonb_array_elements(rollout.earlier_branches) WITH ORDINALITY AS earlier (messages, at)
        ) AS told (number, messages)
        LEFT JOIN LATERAL jsonb_path_query(told.messages, '$[*] ? (@.role == "assistant")')
            WITH ORDINALITY AS reply (message, at) ON true
        GROUP BY told.number
    ) AS branch
    HAVING count(branch.nearest) > 0
) AS said
WHERE rollout.group_id = ANY(%(group_ids)s::bigint[])
