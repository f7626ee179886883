-- Choose which problems of an environment are handed out next, and note their turns. Every pool gives as many as it is
-- asked for, the longest waiting first; what it lacks another gives, by preference, and only where nothing else is left
-- one that was handed out a moment ago. One that was handed out and never scored, of which every rollout may fail for
-- ever, rests for as many turns as there are known problems: it has its part of them and no more. What was handed out
-- beyond the last problem, before anybody had counted them, was another one, and does not come again.
-- Reads as many rows of each pool as are wanted altogether, however many there are.
-- Locks: the environment's row, which the caller has; the rows of the problems chosen.
-- Index: known_problem_queue, known_problem_once.
WITH pools AS (
    SELECT name, wanted, preference
    FROM unnest(%(pools)s::text[], %(wanted)s::int[]) WITH ORDINALITY AS pools(name, wanted, preference)
), offered AS (
    SELECT problem_index, wanted, preference,
           turn <= CASE name WHEN 'new' THEN least(%(rested)s, %(turn)s - %(unseen)s) ELSE %(rested)s END AS is_rested,
           row_number() OVER (PARTITION BY name ORDER BY turn, problem_index)
               + CASE name WHEN 'new' THEN %(count)s ELSE 0 END AS place
    FROM pools CROSS JOIN LATERAL (
        SELECT problem_index, turn FROM rollouts_knownproblem
        WHERE environment_id = %(environment_id)s AND pool = pools.name
          AND (%(problems)s::bigint IS NULL OR problem_index < %(problems)s::bigint)
        ORDER BY turn LIMIT %(count)s
    ) AS waiting
    UNION ALL
    SELECT problem_index, wanted, preference, true, problem_index - %(unseen)s + 1
    FROM pools CROSS JOIN generate_series(
        %(unseen)s::bigint, least(%(unseen)s::bigint + %(count)s, %(problems)s::bigint) - 1
    ) AS unseen(problem_index)
    WHERE name = 'new'
), chosen AS (
    SELECT problem_index
    FROM offered
    ORDER BY is_rested DESC, (place <= wanted) DESC, preference, place
    LIMIT %(count)s
)
INSERT INTO rollouts_knownproblem (environment_id, problem_index, pool, groups, turn)
SELECT %(environment_id)s, problem_index, 'new', 0, %(turn)s + row_number() OVER (ORDER BY problem_index) - 1
FROM chosen
ON CONFLICT (environment_id, problem_index) DO UPDATE SET turn = EXCLUDED.turn
RETURNING problem_index
