-- Behind `dataset_texts`: what every so many-th member says, in order, and of which rollouts that is.
SELECT position, text::text, group_id, index, other_index
FROM texts
WHERE text IS NOT NULL AND position %% %(step)s = 0
ORDER BY position
