-- Behind `dataset_texts`: what every so many-th member says, in order.
SELECT position, text::text FROM texts WHERE text IS NOT NULL AND position %% %(step)s = 0 ORDER BY position
