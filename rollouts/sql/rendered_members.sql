-- Some members of a version, in their order, with everything that a row of an export says; JSON stays text, for whoever
-- passes it on. Nothing of it can change once the version is made, which is why the same version is the same bytes.
-- Locks: nothing. Everything read here is insert-only, or set once before a group can be a member.
-- Index: dataset_member_position_once, primary keys.
SELECT m.position, m.split, m.is_wanted, m.step, m.row::text,
       g.id, run.id, run.key, g.key, e.name, g.environment_version, g.problem_key,
       r.index, r.seat, coalesce(r.last_policy_version, g.max_policy_version),
       coalesce(g.given_rewards[r.index + 1], r.reward),
       r.messages::text, r.tools::text, r.earlier_branches::text,
       o.index, coalesce(g.given_rewards[o.index + 1], o.reward), o.messages::text, o.earlier_branches::text,
       c.edited::text,
       CASE WHEN m.labels IS NOT NULL OR m.correction_id IS NOT NULL THEN ARRAY(
           SELECT DISTINCT actor COLLATE "C" FROM rollouts_label
           WHERE id = ANY(m.labels || m.correction_id) ORDER BY 1
       ) END,
       CASE WHEN m.labels IS NOT NULL OR m.correction_id IS NOT NULL THEN ARRAY(
           SELECT DISTINCT (queue.name || '@' || guideline.version) COLLATE "C"
           FROM rollouts_label AS label
           JOIN rollouts_guideline AS guideline ON guideline.id = label.guideline_id
           JOIN rollouts_labelqueue AS queue ON queue.id = guideline.queue_id
           WHERE label.id = ANY(m.labels || m.correction_id) ORDER BY 1
       ) END
FROM rollouts_datasetmember AS m
LEFT JOIN rollouts_scoredgroup AS g ON g.id = m.group_id
LEFT JOIN rollouts_runenvironment AS e ON e.id = g.environment_id
LEFT JOIN rollouts_run AS run ON run.id = g.run_id
LEFT JOIN rollouts_rollout AS r ON r.id = m.rollout_id
LEFT JOIN rollouts_rollout AS o ON o.id = m.other_id
LEFT JOIN rollouts_label AS c ON c.id = m.correction_id
WHERE m.version_id = %(version_id)s AND m.position BETWEEN %(first)s AND %(last)s
ORDER BY m.position
