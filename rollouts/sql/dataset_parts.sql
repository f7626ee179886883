-- How many members of a version are of each environment, of each run, and have each tag: the most frequent of each.
-- Locks: nothing.
-- Index: dataset_member_position_once.
WITH named AS (
    SELECT 'environment' AS kind, coalesce(environment.name, member.row ->> 'environment') AS name, count(*) AS members
    FROM rollouts_datasetmember AS member
    LEFT JOIN rollouts_scoredgroup AS scored ON scored.id = member.group_id
    LEFT JOIN rollouts_runenvironment AS environment ON environment.id = scored.environment_id
    WHERE member.version_id = %(version_id)s
    GROUP BY 2
    UNION ALL
    SELECT 'run', run.key, count(*)
    FROM rollouts_datasetmember AS member
    JOIN rollouts_scoredgroup AS scored ON scored.id = member.group_id
    JOIN rollouts_run AS run ON run.id = scored.run_id
    WHERE member.version_id = %(version_id)s
    GROUP BY run.key
    UNION ALL
    SELECT 'tag', tag, count(DISTINCT member.position)
    FROM rollouts_datasetmember AS member
    CROSS JOIN unnest(member.labels) AS said (label_id)
    JOIN rollouts_label AS label ON label.id = said.label_id
    CROSS JOIN unnest(label.tags) AS tag
    WHERE member.version_id = %(version_id)s
    GROUP BY tag
),
ranked AS (
    SELECT *, row_number() OVER (PARTITION BY kind ORDER BY members DESC, name) AS rank
    FROM named
    WHERE name IS NOT NULL
)
SELECT kind, name, members FROM ranked WHERE rank <= %(most)s ORDER BY kind, rank
