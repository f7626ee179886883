-- Rows of a file, or those that another version has of one, become members of a version. Of one problem all are in the
-- same split: it is the row's `problem_key`, else its prompt, else what the user says first.
-- Locks: nothing. The version's own row comes later in the same transaction, by the id that was drawn for it.
-- Index: dataset_member_position_once.
WITH incoming AS (
    SELECT position, is_wanted, row
    FROM rollouts_datasetmember
    WHERE version_id = %(parent_id)s
    UNION ALL
    SELECT %(first)s + at - 1, is_wanted, row::jsonb
    FROM unnest(%(wanted)s::boolean[], %(rows)s::text[]) WITH ORDINALITY AS given (is_wanted, row, at)
)
INSERT INTO rollouts_datasetmember (version_id, position, split, is_wanted, row)
SELECT %(version_id)s, position,
       CASE
           WHEN ('x' || left(encode(sha256(convert_to(
               coalesce(
                   nullif(row ->> 'problem_key', ''), row ->> 'prompt',
                   jsonb_path_query_first(row, '$.messages[*] ? (@.role == "user").content') #>> '{}',
                   jsonb_path_query_first(row, '$.chosen[*] ? (@.role == "user").content') #>> '{}',
                   row::text
               ), 'UTF8'
           )), 'hex'), 8))::bit(32)::bigint < %(validation_share)s * 4294967296 THEN 'eval'
           ELSE 'train'
       END,
       is_wanted, row
FROM incoming
ORDER BY position
LIMIT %(limit)s
