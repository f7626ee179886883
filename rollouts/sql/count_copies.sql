-- Behind `dataset_texts`: members that say exactly the same, those of which there are most first, with the first few
-- positions of each, and how many members there are beyond the first of each.
, hashed AS (
    SELECT position, sha256(convert_to(text::text, 'UTF8')) AS digest FROM texts WHERE text IS NOT NULL
),
copied AS (
    SELECT count(*) AS times, (array_agg(position ORDER BY position))[1:%(shown_each)s] AS positions
    FROM hashed
    GROUP BY digest
    HAVING count(*) > 1
)
SELECT positions, times, sum(times - 1) OVER () AS copies
FROM copied
ORDER BY times DESC, positions
LIMIT %(shown)s
