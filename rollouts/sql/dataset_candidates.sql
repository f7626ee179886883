-- The beginning of the statements that make a version of a dataset: every rollout of some runs, of a queue or of another
-- version, what people say of it, and why it is left out, if it is. `choose_examples`, `decided` with `choose_pairs`, and
-- `count_left_out` go on from here.
-- A word that corrects a rollout says that the correction is good, also where it rejects: that is of the original. One
-- that skips corrects nothing, whatever was typed.
-- What is said in a blind queue counts when the queue is closed: who has still to say a word reads none here either.
-- Locks: nothing. Rollouts and labels are insert-only.
-- Index: group_ledger, rollout_index_once_per_group, label_by_run.
WITH words AS (
    SELECT label.id, label.group_id, label.rollout_id, label.other_id, label.verdict, label.preference, label.tags,
           label.actor, label.edited IS NOT NULL AND label.verdict <> 'skip' AS is_edit,
           coalesce(label.person_id::text, label.actor) AS person,
           coalesce(queue.source_id IS NOT NULL, false) AS is_adjudicated
    FROM rollouts_label AS label
    LEFT JOIN rollouts_labelqueue AS queue ON queue.id = label.queue_id
    WHERE label.run_id = ANY(%(run_ids)s) AND label.verdict <> 'withdrawn'
      AND (queue.id IS NULL OR NOT queue.is_blind OR queue.closed_at IS NOT NULL)
      AND NOT EXISTS (SELECT FROM rollouts_label AS newer WHERE newer.supersedes_id = label.id)
),
of_groups AS (
    SELECT group_id, bool_or(verdict = 'accept') AS is_accepted, bool_or(verdict = 'reject') AS is_rejected,
           bool_or(tags && %(tags)s::varchar[]) AS is_tagged, array_agg(id ORDER BY id) AS labels
    FROM words
    WHERE rollout_id IS NULL
    GROUP BY group_id
),
of_rollouts AS (
    SELECT rollout_id, bool_or(verdict = 'accept' OR is_edit) AS is_accepted,
           bool_or(verdict = 'reject' AND NOT is_edit) AS is_rejected,
           bool_or(tags && %(tags)s::varchar[]) AS is_tagged, array_agg(id ORDER BY id) AS labels,
           max(id) FILTER (WHERE is_edit) AS correction_id
    FROM words
    WHERE rollout_id IS NOT NULL AND other_id IS NULL
    GROUP BY rollout_id
),
picked AS (
    SELECT group_id, rollout_id, true AS is_wanted FROM rollouts_queueitem WHERE queue_id = %(queue_id)s
    UNION ALL
    SELECT group_id, other_id, true FROM rollouts_queueitem WHERE queue_id = %(queue_id)s AND other_id IS NOT NULL
    UNION ALL
    SELECT group_id, rollout_id, is_wanted FROM rollouts_datasetmember WHERE version_id = %(parent_id)s
    UNION ALL
    SELECT group_id, other_id, true FROM rollouts_datasetmember WHERE version_id = %(parent_id)s AND other_id IS NOT NULL
),
heard AS (
    SELECT scored.id AS group_id, coalesce(nullif(scored.problem_key, ''), scored.key) AS problem, scored.withheld,
           scored.state, scored.run_id, environment.name AS environment, tokens.group_id IS NOT NULL AS has_tokens,
           rollout.id AS rollout_id, rollout.index, rollout.seat,
           coalesce(scored.given_rewards[rollout.index + 1], rollout.reward) AS reward, rollout.stop_reason,
           rollout.trained_token_count,
           coalesce(own.is_accepted, false) OR coalesce(whole.is_accepted, false) AS is_accepted,
           coalesce(own.is_rejected, false) OR coalesce(whole.is_rejected, false) AS is_rejected,
           coalesce(own.is_tagged, false) OR coalesce(whole.is_tagged, false) AS is_tagged,
           own.correction_id, nullif(coalesce(whole.labels, '{}') || coalesce(own.labels, '{}'), '{}') AS labels,
           avoided.rollout_id IS NULL AS was_wanted
    FROM rollouts_scoredgroup AS scored
    JOIN rollouts_runenvironment AS environment ON environment.id = scored.environment_id
    JOIN rollouts_rollout AS rollout ON rollout.group_id = scored.id
    LEFT JOIN rollouts_grouptokens AS tokens ON tokens.group_id = scored.id
    LEFT JOIN of_groups AS whole ON whole.group_id = scored.id
    LEFT JOIN of_rollouts AS own ON own.rollout_id = rollout.id
    LEFT JOIN picked AS avoided ON avoided.rollout_id = rollout.id AND NOT avoided.is_wanted
    WHERE scored.run_id = ANY(%(run_ids)s)
      AND (%(groups)s::varchar[] = '{}' OR scored.key = ANY(%(groups)s))
      AND (
          NOT %(is_picked)s
          OR EXISTS (
              SELECT FROM picked
              WHERE picked.group_id = scored.id AND coalesce(picked.rollout_id, rollout.id) = rollout.id
          )
      )
),
candidates AS (
    SELECT *,
           correction_id IS NOT NULL OR (was_wanted AND NOT is_rejected AND (reward < %(unwanted_below)s) IS NOT TRUE)
               AS is_wanted,
           CASE
               WHEN withheld <> '' THEN 'withheld'
               WHEN NOT (
                   CASE WHEN run_id = ANY(%(teaching)s) THEN state = ANY(%(taught)s) ELSE state = ANY(%(states)s) END
               ) THEN 'states'
               WHEN %(environment)s <> '' AND environment <> %(environment)s THEN 'environment'
               WHEN reward IS NULL OR NOT has_tokens
                   OR (trained_token_count = 0 AND run_id <> ALL(%(spoken)s)) THEN 'unscored'
               WHEN is_rejected AND was_wanted AND NOT %(rejected)s THEN 'rejected'
               WHEN %(has_tags)s AND NOT is_tagged THEN 'tags'
               WHEN %(has_correction)s AND correction_id IS NULL THEN 'has_correction'
               WHEN correction_id IS NULL
                   AND (NOT was_wanted OR is_rejected OR (reward < %(unwanted_below)s) IS TRUE) THEN NULL
               WHEN correction_id IS NULL AND reward < %(min_reward)s THEN 'min_reward'
               WHEN correction_id IS NULL AND reward > %(max_reward)s THEN 'max_reward'
               WHEN correction_id IS NULL AND stop_reason = 'length' AND NOT %(truncated)s THEN 'truncated'
               WHEN %(accepted)s AND NOT is_accepted THEN 'accepted'
           END AS left_out
    FROM heard
)
