-- What evaluations of a project asked: of each problem in an environment of the same name the messages of a
-- first rollout, one that was scored if there is any. A teacher's play of training problems is no evaluation of them.
-- Of a rollout with branches the first one, in which the prompt is what the problem asks.
-- Locks: nothing.
-- Index: evaluation of a run, group_problem_once_per_evaluation, rollout_index_once_per_group, primary keys.
SELECT NULL::integer AS position, asked.environment, asked.problem_key, rollout.group_id, rollout.index,
       coalesce(jsonb_array_length(rollout.earlier_branches), 0) + 1 AS branches,
       coalesce(rollout.earlier_branches -> 0, rollout.messages)::text AS messages
FROM (
    SELECT DISTINCT ON (environment.name, scored.problem_key)
           environment.name AS environment, scored.problem_key, first.id AS rollout_id
    FROM rollouts_run AS run
    JOIN rollouts_evaluation AS evaluation ON evaluation.run_id = run.id
    JOIN rollouts_scoredgroup AS scored ON scored.evaluation_id = evaluation.id
    JOIN rollouts_runenvironment AS environment ON environment.id = scored.environment_id
    JOIN rollouts_rollout AS first ON first.group_id = scored.id AND first.index = 0
    WHERE run.project_id = %(project_id)s
      AND NOT (run.kind = 'eval' AND coalesce(run.config #>> '{evaluation,split}', '') = 'train')
    ORDER BY environment.name, scored.problem_key, first.reward IS NULL, scored.id
) AS asked
JOIN rollouts_rollout AS rollout ON rollout.id = asked.rollout_id
