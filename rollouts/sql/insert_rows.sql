-- Rows of a file, or those that another version has of one, become members of a version. Of one problem all are in the
-- same split: it is the row's `problem_key`, else its prompt, else what the user says first. A row stays as it was
-- written; what is asked of it is asked of one form, in which the order of its keys makes no difference.
-- Locks: nothing. The version's own row comes later in the same transaction, by the id that was drawn for it.
-- Index: dataset_member_position_once.
WITH incoming AS (
    SELECT position, is_wanted, row
    FROM rollouts_datasetmember
    WHERE version_id = %(parent_id)s
    UNION ALL
    SELECT %(first)s + at - 1, is_wanted, row::json
    FROM unnest(%(wanted)s::boolean[], %(rows)s::text[]) WITH ORDINALITY AS given (is_wanted, row, at)
)
INSERT INTO rollouts_datasetmember (version_id, position, split, is_wanted, row)
SELECT %(version_id)s, position,
       CASE
           WHEN ('x' || left(encode(sha256(convert_to(
               coalesce(
                   nullif(asked ->> 'problem_key', ''), nullif(nullif(asked ->> 'prompt', ''), '[]'),
                   jsonb_path_query_first(asked, '$.messages[*] ? (@.role == "user").content') #>> '{}',
                   jsonb_path_query_first(asked, '$.chosen[*] ? (@.role == "user").content') #>> '{}',
                   asked::text
               ), 'UTF8'
           )), 'hex'), 8))::bit(32)::bigint < %(validation_share)s * 4294967296 THEN 'eval'
           ELSE 'train'
       END,
       is_wanted, row
FROM incoming
CROSS JOIN LATERAL (SELECT row::jsonb AS asked) AS parsed
ORDER BY position
LIMIT %(limit)s
