-- Store the rollouts and token arrays of groups that were just inserted or are being settled.
-- Locks: nothing. The group's row is the caller's.
-- Index: none read.
WITH tokens AS (
    INSERT INTO rollouts_grouptokens (
        group_id, lengths, token_ids, loss_mask, inference_logprobs, ref_logprobs, advantages, branch_lengths, extras
    )
    SELECT * FROM unnest(
        %(group_ids)b::bigint[], %(lengths)b::bytea[], %(token_ids)b::bytea[], %(loss_masks)b::bytea[],
        %(inference_logprobs)b::bytea[], %(ref_logprobs)b::bytea[], %(advantages)b::bytea[],
        %(branch_lengths)b::bytea[], %(extras)b::bytea[]
    )
)
INSERT INTO rollouts_rollout (
    group_id, index, seat, reward, metrics, messages, stop_reason, error_kind, error, token_count, trained_token_count,
    dispatch_policy_version, first_policy_version, last_policy_version, replica, worker, generation_s, tools,
    earlier_branches, spans
)
SELECT group_id, index, seat, reward, metrics::jsonb, messages::jsonb, stop_reason, error_kind, error::jsonb, token_count,
       trained_token_count, dispatch_policy_version, first_policy_version, last_policy_version, replica, worker,
       generation_s, tools::json, earlier_branches::jsonb, spans::jsonb
FROM unnest(
    %(of_groups)b::bigint[], %(indexes)b::smallint[], %(seats)b::text[], %(rewards)b::float8[], %(metrics)b::text[], %(messages)b::text[],
    %(stop_reasons)b::text[], %(error_kinds)b::text[], %(errors)b::text[], %(rollout_lengths)b::int[], %(trained)b::int[],
    %(dispatch_versions)b::int[], %(first_versions)b::int[], %(last_versions)b::int[], %(replicas)b::text[],
    %(workers)b::text[], %(generation_s)b::float8[], %(tools)b::text[], %(earlier_branches)b::text[],
    %(spans)b::text[]
) AS incoming(
    group_id, index, seat, reward, metrics, messages, stop_reason, error_kind, error, token_count, trained_token_count,
    dispatch_policy_version, first_policy_version, last_policy_version, replica, worker, generation_s, tools,
    earlier_branches, spans
)
