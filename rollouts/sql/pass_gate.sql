-- What a submission must know of its run, read after the gate was passed: its state and counters, its environments, and
-- ids for the groups to come.
-- Locks: nothing; the gate is an advisory lock that the caller holds (services.groups.intake).
-- Index: primary key, environment_once_per_run.
SELECT run.state, run.next_step, run.live_version,
       (SELECT coalesce(jsonb_object_agg(name, id), '{}') FROM rollouts_runenvironment WHERE run_id = run.id),
       ARRAY(SELECT nextval('rollouts_scoredgroup_id_seq') FROM generate_series(1, %(groups)s))
FROM rollouts_run AS run
WHERE run.id = %(run_id)s
