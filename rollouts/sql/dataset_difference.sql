-- What became of the members of one version in another: added, removed, relabelled (wanted or not, corrected otherwise, of
-- a pair the other way round), moved to the other split, the same; how many of each, and the positions of the first.
-- A rollout is the same whatever is said of it, a pair in either direction, a row of a file by all that it has.
-- Locks: nothing.
-- Index: dataset_member_position_once.
WITH members AS (
    SELECT version_id, position, split, is_wanted, rollout_id, correction_id, least(rollout_id, other_id) AS one,
           greatest(rollout_id, other_id) AS two, sha256(convert_to(row::jsonb::text, 'UTF8')) AS digest
    FROM rollouts_datasetmember
    WHERE version_id IN (%(before)s, %(after)s)
),
numbered AS (
    SELECT *, row_number() OVER (PARTITION BY version_id, one, two, digest ORDER BY position) AS time
    FROM members
),
compared AS (
    SELECT earlier.position AS before, later.position AS after,
           CASE
               WHEN earlier.position IS NULL THEN 'added'
               WHEN later.position IS NULL THEN 'removed'
               WHEN (earlier.is_wanted, earlier.correction_id, earlier.rollout_id)
                   IS DISTINCT FROM (later.is_wanted, later.correction_id, later.rollout_id) THEN 'relabelled'
               WHEN earlier.split <> later.split THEN 'moved'
               ELSE 'same'
           END AS kind
    FROM (SELECT * FROM numbered WHERE version_id = %(before)s) AS earlier
    FULL JOIN (SELECT * FROM numbered WHERE version_id = %(after)s) AS later
        ON coalesce(later.one, 0) = coalesce(earlier.one, 0) AND coalesce(later.two, 0) = coalesce(earlier.two, 0)
        AND coalesce(later.digest, '') = coalesce(earlier.digest, '') AND later.time = earlier.time
),
ranked AS (
    SELECT *, count(*) OVER (PARTITION BY kind) AS total,
           row_number() OVER (PARTITION BY kind ORDER BY coalesce(after, before)) AS rank
    FROM compared
)
SELECT kind, total, before, after FROM ranked WHERE rank <= %(shown)s ORDER BY kind, rank
