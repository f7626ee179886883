-- What the application may do with the store. Read by controlplane/rights.py as the owner, after every migration; doing
-- it again changes nothing. Whoever gets hold of the application can neither rewrite what happened nor remove it: of the
-- record only the columns that the product itself changes may be changed, and nothing is truncated.
--
-- Every table is named here, or a test fails. A row lock needs the right to update some column; foreign keys are checked
-- with the rights of the owner, and columns that number themselves need no right to their sequence.

-- Of two who give rights at the same time, one would be refused. Any number nobody else locks: "Rights".
SELECT pg_advisory_xact_lock(x'526967687473'::bigint);

REVOKE ALL ON ALL TABLES IN SCHEMA public FROM {application};
REVOKE ALL ON ALL SEQUENCES IN SCHEMA public FROM {application};
REVOKE CREATE ON SCHEMA public FROM PUBLIC, {application};
GRANT USAGE ON SCHEMA public TO {application};

-- Written once, for ever: what happened, what was played, what was trained on, what people said of it and did with it, and
-- who changed people and tokens.
GRANT SELECT, INSERT ON
    rollouts_event,
    rollouts_batchitem,
    rollouts_rollout,
    rollouts_grouptokens,
    rollouts_environmentsource,
    rollouts_label,
    rollouts_act,
    rollouts_actitem,
    rollouts_guideline,
    rollouts_datasetmember,
    django_admin_log
TO {application};

-- The record: rows stay, and so does what they say, but for their state and what goes with it; triggers keep the last
-- state of every row, and the scores of a settled group (rollouts/migrations/0015_closed_rows.py).
GRANT SELECT, INSERT ON
    rollouts_attempt,
    rollouts_batch,
    rollouts_checkpoint,
    rollouts_delivery,
    rollouts_environmentclient,
    rollouts_evaluation,
    rollouts_knownproblem,
    rollouts_policyversion,
    rollouts_replay,
    rollouts_replica,
    rollouts_run,
    rollouts_runenvironment,
    rollouts_scoredgroup
TO {application};

GRANT UPDATE (state, state_at, reason_code, reason_params, started_at, closed_at, first_step)
    ON rollouts_attempt TO {application};
-- Neither its bytes' hash nor its size: the same step is the same bytes for ever.
GRANT UPDATE (state, state_at, reason_code, reason_params, delivered_at, deliveries, trained_at)
    ON rollouts_batch TO {application};
-- Their ids are drawn before they are written.
GRANT USAGE ON SEQUENCE rollouts_batch_id_seq, rollouts_scoredgroup_id_seq TO {application};
-- A trainer that resumed writes a checkpoint of the same step again.
GRANT UPDATE (state, state_at, reason_code, reason_params, path, manifest_sha256, size_bytes, epoch)
    ON rollouts_checkpoint TO {application};
GRANT UPDATE (token, taken_at, expires_at, sent_at, abandoned_at)
    ON rollouts_delivery TO {application};
GRANT UPDATE (state, state_at, reason_code, reason_params, seen_at, lapsed_at)
    ON rollouts_environmentclient TO {application};
-- Its problems are cut to those that there are where it was opened before anybody knew.
GRANT UPDATE (state, state_at, reason_code, reason_params, problems, cursor, reward_mean, figures, min_policy_version,
              max_policy_version, finished_at)
    ON rollouts_evaluation TO {application};
-- The path is emptied when the files are removed; the hash stays.
GRANT UPDATE (state, state_at, reason_code, reason_params, published_at, path)
    ON rollouts_policyversion TO {application};
GRANT UPDATE (taken)
    ON rollouts_replay TO {application};
GRANT UPDATE (state, state_at, reason_code, reason_params, directory, base_url, gpus, cores, job_number, host, begun_at, due_at,
              loaded_version, probe_failures, answered_at, exit_code, ended_at)
    ON rollouts_replica TO {application};
-- Neither its config, nor whose it is, nor what it was forked from.
GRANT UPDATE (state, state_at, reason_code, reason_params, model_id, epoch, next_step, live_version,
              mixture_clock, trainer_restarts, started_at, trainer_finished_at, finished_at)
    ON rollouts_run TO {application};
GRANT UPDATE (weight, problem_count, cursor, problems, unseen, passed, turn_time, virtual_time)
    ON rollouts_runenvironment TO {application};
GRANT UPDATE (pool, solve_rate, groups, turn)
    ON rollouts_knownproblem TO {application};
GRANT UPDATE (state, state_at, reason_code, reason_params, problem_key, environment_version, lease_count, settled_at,
              rollout_count, token_count, reward_mean, reward_std, scored_count, solved_count, min_policy_version,
              max_policy_version, withheld, review_until, given_rewards)
    ON rollouts_scoredgroup TO {application};

-- GPUs that runs were promised: given back once.
GRANT SELECT, INSERT ON rollouts_placement TO {application};
GRANT UPDATE (released_at) ON rollouts_placement TO {application};

-- Episodes that programs outside play: finished once, and once a member of a group.
GRANT SELECT, INSERT ON rollouts_agentsession TO {application};
GRANT UPDATE (finished_at, record, grouped_at) ON rollouts_agentsession TO {application};

-- Episodes that people try: who tried what stays, and what became of it once it is over.
GRANT SELECT, INSERT ON rollouts_trial TO {application};
GRANT UPDATE (state, state_at, reason_code, reason_params, holder, record, finished_at) ON rollouts_trial TO {application};

-- What people look at, and whose turn it is: a queue keeps what it was made for, but for who looks.
GRANT SELECT, INSERT ON rollouts_labelqueue, rollouts_queueitem, rollouts_queueturn TO {application};
GRANT SELECT, INSERT, DELETE ON rollouts_labelqueue_people TO {application};
GRANT UPDATE (filled_until, filled_group, closed_at) ON rollouts_labelqueue TO {application};
GRANT UPDATE (words, is_open) ON rollouts_queueitem TO {application};
GRANT UPDATE (taken_at, expires_at, label_id, act_id) ON rollouts_queueturn TO {application};

-- What is learned from: a version stays as it was made, and is counted once.
GRANT SELECT, INSERT ON rollouts_dataset, rollouts_datasetversion TO {application};
GRANT UPDATE (notes, licence) ON rollouts_dataset TO {application};
GRANT UPDATE (statistics) ON rollouts_datasetversion TO {application};
-- Its id is drawn before its members are written, and it comes after them.
GRANT USAGE ON SEQUENCE rollouts_datasetversion_id_seq TO {application};

-- Files that versions are written to, and which runs learn from one.
GRANT SELECT, INSERT ON rollouts_export, rollouts_rundataset TO {application};
GRANT UPDATE (state, state_at, reason_code, reason_params, epoch, expires_at, members_done, row_count, size_bytes, manifest,
              finished_at)
    ON rollouts_export TO {application};
GRANT UPDATE (sha256, row_count) ON rollouts_rundataset TO {application};

-- The way in from outside: whose it is and how long, and its key.
GRANT SELECT, INSERT ON rollouts_address TO {application};
GRANT UPDATE (key, owner_id, expires_at, used_at, resets_on_get) ON rollouts_address TO {application};

-- Who allowed which code, and who withdrew it: a row is closed once, and a trigger keeps it so.
GRANT SELECT, INSERT ON rollouts_trust TO {application};
GRANT UPDATE (withdrawn_actor, withdrawn_at) ON rollouts_trust TO {application};

-- Which models of others may be asked: never changed, closed once, as trust is.
GRANT SELECT, INSERT ON rollouts_endpoint TO {application};
-- With a project goes what it might ask.
GRANT SELECT, INSERT, DELETE ON rollouts_endpoint_projects TO {application};
GRANT UPDATE (removed_actor, removed_at) ON rollouts_endpoint TO {application};

-- A step that is trained again after a resume overwrites its own figures.
GRANT SELECT, INSERT ON
    rollouts_metricpoint,
    rollouts_tokenvalues
TO {application};
GRANT UPDATE (value, recorded_at)
    ON rollouts_metricpoint TO {application};
GRANT UPDATE (trainer_logprobs, entropies, ratios, advantages, mask_reasons, texts)
    ON rollouts_tokenvalues TO {application};

-- What is not the record: people, keys, leases, sessions, names of models. Accounts are closed, not deleted.
GRANT SELECT, INSERT, UPDATE, DELETE ON
    auth_group,
    auth_group_permissions,
    auth_user_groups,
    auth_user_user_permissions,
    axes_accessattempt,
    axes_accessattemptexpiration,
    django_session,
    rollouts_driverload,
    rollouts_keptpool,
    rollouts_lease,
    rollouts_membership,
    rollouts_project,
    rollouts_workerjob
TO {application};
GRANT SELECT, INSERT, UPDATE ON
    auth_user,
    rollouts_replicaload
TO {application};
GRANT SELECT, INSERT, DELETE ON
    controlplane_loginlink,
    rollouts_apitoken,
    rollouts_model
TO {application};
-- Only so that their rows can be locked.
GRANT UPDATE (expires_at) ON controlplane_loginlink TO {application};
GRANT UPDATE (created_by_id) ON rollouts_model TO {application};

-- Written by migrations, or by nobody.
GRANT SELECT ON
    auth_permission,
    axes_accessfailurelog,
    axes_accesslog,
    django_content_type,
    django_migrations
TO {application};
