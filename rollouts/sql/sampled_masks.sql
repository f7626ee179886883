-- Which tokens of some groups were sampled, without the tokens; and of each of their rollouts without tokens how often
-- somebody was asked for what its messages show, in their order: as often as it waited, unless an endpoint's session
-- counted fewer (`environments.figures.REPLIES`). Null where there are tokens, or nobody measured.
-- Code that writes metrics may write that one too, so it makes nothing of what was never asked.
-- Locks: nothing. Everything read here is insert-only.
-- Index: primary key, rollout_index_once_per_group.
SELECT tokens.group_id, tokens.lengths, tokens.loss_mask, tokens.branch_lengths,
       ARRAY(
           SELECT CASE WHEN rollout.token_count = 0 AND rollout.spans IS NOT NULL THEN greatest(0, least(
               (SELECT count(*) FROM jsonb_array_elements(rollout.spans) AS span WHERE span ->> 0 = 'model'),
               (rollout.metrics ->> 'endpoint/replies')::float8
           ))::int END
           FROM rollouts_rollout AS rollout
           WHERE rollout.group_id = tokens.group_id
           ORDER BY rollout.index
       ) AS asked
FROM rollouts_grouptokens AS tokens
WHERE tokens.group_id = ANY(%(group_ids)s)
