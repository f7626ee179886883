-- Behind `words_on_groups` and `decided`: for each thing somebody spoke of what was decided, how, by whom, and how many
-- people say which word.
-- Locks: nothing.
SELECT decided.group_id, decided.rollout_id, decided.other_id, one.index, other.index, decided.word, decided.how,
       decided.actor, decided.words
FROM decided
LEFT JOIN rollouts_rollout AS one ON one.id = decided.rollout_id
LEFT JOIN rollouts_rollout AS other ON other.id = decided.other_id
ORDER BY decided.group_id, one.index NULLS FIRST, other.index NULLS FIRST
