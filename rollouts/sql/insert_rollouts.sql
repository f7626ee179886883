-- Store the rollouts and token arrays of groups that were just inserted or are being settled.
-- Locks: nothing. The group's row is the caller's.
-- Index: none read.
WITH tokens AS (
    INSERT INTO rollouts_grouptokens (
        group_id, lengths, token_ids, loss_mask, inference_logprobs, ref_logprobs, advantages, extras
    )
    SELECT * FROM unnest(
        %(group_ids)s::bigint[], %(lengths)s::bytea[], %(token_ids)s::bytea[], %(loss_masks)s::bytea[],
        %(inference_logprobs)s::bytea[], %(ref_logprobs)s::bytea[], %(advantages)s::bytea[], %(extras)s::bytea[]
    )
)
INSERT INTO rollouts_rollout (
    group_id, index, reward, metrics, messages, stop_reason, error_kind, error, token_count, trained_token_count,
    dispatch_policy_version, first_policy_version, last_policy_version, replica, worker, generation_s
)
SELECT group_id, index, reward, metrics::jsonb, messages::jsonb, stop_reason, error_kind, error::jsonb, token_count,
       trained_token_count, dispatch_policy_version, first_policy_version, last_policy_version, replica, %(worker)s,
       generation_s
FROM unnest(
    %(of_groups)s::bigint[], %(indexes)s::smallint[], %(rewards)s::float8[], %(metrics)s::text[], %(messages)s::text[],
    %(stop_reasons)s::text[], %(error_kinds)s::text[], %(errors)s::text[], %(rollout_lengths)s::int[], %(trained)s::int[],
    %(dispatch_versions)s::int[], %(first_versions)s::int[], %(last_versions)s::int[], %(replicas)s::text[],
    %(generation_s)s::float8[]
) AS incoming(
    group_id, index, reward, metrics, messages, stop_reason, error_kind, error, token_count, trained_token_count,
    dispatch_policy_version, first_policy_version, last_policy_version, replica, generation_s
)
