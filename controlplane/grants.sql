-- What the application may do with the store. Read by controlplane/rights.py as the owner, after every migration; doing
-- it again changes nothing. Whoever gets hold of the application can neither rewrite what happened nor remove it: of the
-- record only the columns that the product itself changes may be changed, and nothing is truncated.
--
-- Every table is named here, or a test fails. A row lock needs the right to update some column; foreign keys are checked
-- with the rights of the owner, and columns that number themselves need no right to their sequence.

REVOKE ALL ON ALL TABLES IN SCHEMA public FROM {application};
REVOKE ALL ON ALL SEQUENCES IN SCHEMA public FROM {application};
REVOKE CREATE ON SCHEMA public FROM PUBLIC, {application};
GRANT USAGE ON SCHEMA public TO {application};

-- Written once, for ever: what happened, what was played, what was trained on, and who changed people and tokens.
GRANT SELECT, INSERT ON
    rollouts_event,
    rollouts_batchitem,
    rollouts_rollout,
    rollouts_grouptokens,
    django_admin_log
TO {application};

-- The record: rows stay, and so does what they say, but for their state and what goes with it.
GRANT SELECT, INSERT ON
    rollouts_attempt,
    rollouts_batch,
    rollouts_checkpoint,
    rollouts_delivery,
    rollouts_environmentclient,
    rollouts_evaluation,
    rollouts_policyversion,
    rollouts_replay,
    rollouts_replica,
    rollouts_run,
    rollouts_runenvironment,
    rollouts_scoredgroup
TO {application};
