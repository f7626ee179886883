-- Take a scored group into the solve rate of its problem, and move the problem to the pool where it then belongs.
-- Locks: the problem's row; by a statement of its own, for the reason given in transition.sql.
-- Index: known_problem_once.
SELECT FROM rollouts_knownproblem
WHERE environment_id = %(environment_id)s AND problem_index = %(problem_index)s
FOR NO KEY UPDATE;

UPDATE rollouts_knownproblem AS problem
SET solve_rate = rated.rate, groups = problem.groups + 1,
    pool = CASE WHEN rated.rate >= %(easy_from)s THEN 'easy' WHEN rated.rate <= %(hard_to)s THEN 'hard' ELSE 'normal' END
FROM (
    SELECT id, %(memory)s * coalesce(solve_rate, %(rate)s) + (1 - %(memory)s) * %(rate)s AS rate
    FROM rollouts_knownproblem
    WHERE environment_id = %(environment_id)s AND problem_index = %(problem_index)s
) AS rated
WHERE problem.id = rated.id
