-- Behind `dataset_candidates`: how many rollouts there are, by what leaves them out; null: nothing does.
-- Locks: nothing.
SELECT left_out, count(*) FROM candidates GROUP BY left_out ORDER BY count(*) DESC, left_out
