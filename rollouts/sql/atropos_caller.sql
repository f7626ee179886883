-- Who calls the Atropos-compatible API: the run behind an address, its open attempt, the client that calls itself
-- `env_id` (negative: counted from the newest), and the steps formed so far. Whether the address still opens it: it has
-- not expired, and its owner may operate the run. Whether its last use is to be noted.
-- Locks: nothing.
-- Index: unique index on the address's key, membership_once_per_project, attempt_one_open_per_run, client_index_once_per_attempt, batch_once_per_step.
SELECT run.id, run.state, formed.steps,
       attempt.id, attempt.started_at IS NOT NULL, attempt.first_step, attempt.batch_size, attempt.max_token_len,
       attempt.starting_step, attempt.num_steps, attempt.save_checkpoint_interval, attempt.checkpoint_dir,
       attempt.wandb_group, attempt.wandb_project,
       client.id, client.wandb_name, client.group_size, client.batch_size, client.environment_id, environment.name,
       address.expires_at > clock_timestamp(),
       EXISTS (
           SELECT FROM auth_user AS owner
           WHERE owner.id = address.owner_id AND owner.is_active AND (owner.is_superuser OR EXISTS (
               SELECT FROM rollouts_membership AS membership
               WHERE membership.user_id = owner.id AND membership.project_id = run.project_id
                   AND membership.role = ANY(%(roles)s)
           ))
       ),
       address.used_at IS NULL OR address.used_at < clock_timestamp() - make_interval(secs => %(use_noted_s)s),
       address.resets_on_get
FROM rollouts_address AS address
JOIN rollouts_run AS run ON run.id = address.run_id
CROSS JOIN LATERAL (
    SELECT coalesce(max(step) + 1, 0) AS steps FROM rollouts_batch WHERE run_id = run.id
) AS formed
LEFT JOIN rollouts_attempt AS attempt ON attempt.run_id = run.id AND attempt.closed_at IS NULL
LEFT JOIN rollouts_environmentclient AS client ON client.attempt_id = attempt.id AND client.index = CASE
    WHEN %(env_id)s::int >= 0 THEN %(env_id)s::int
    ELSE %(env_id)s::int + 1 + (SELECT max(index) FROM rollouts_environmentclient WHERE attempt_id = attempt.id)
END
LEFT JOIN rollouts_runenvironment AS environment ON environment.id = client.environment_id
WHERE address.key = %(key)s
