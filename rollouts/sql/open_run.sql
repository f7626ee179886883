-- The run that a token may use in this way, with the token's digest for the caller to compare. The only place that says
-- which token opens which run.
-- Locks: nothing.
-- Index: knox' on token_key, run's unique key, membership_once_per_project.
SELECT token.digest, token.name, run.id
FROM rollouts_apitoken AS token
JOIN auth_user AS account ON account.id = token.user_id AND account.is_active
JOIN rollouts_run AS run
    ON run.key = %(run)s AND run.project_id = token.project_id AND (token.run_id IS NULL OR token.run_id = run.id)
WHERE token.token_key = %(token_key)s
    AND (token.expiry IS NULL OR token.expiry > clock_timestamp())
    AND %(scope)s = ANY(token.scopes)
    AND (account.is_superuser OR EXISTS (
        SELECT FROM rollouts_membership AS membership
        WHERE membership.user_id = account.id AND membership.project_id = run.project_id
            AND membership.role = ANY(%(roles)s)
    ))
