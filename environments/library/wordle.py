"""wordle: find a hidden word of five letters by guessing words. Several turns; needs no data.

Whatever was guessed is worked out anew from the replies, so an episode that a budget cut is scored like any other.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from environments.env import Environment
from environments.library.splits import digest, is_held_out
from environments.library.wordle_words import WORDS
from environments.rewards.replies import in_tag, without_thoughts
from environments.types import Message, PlayedRollout, Problem, Split

GREEN, YELLOW, GREY = "G", "Y", "X"
_LENGTH = 5
_LISTED = frozenset(WORDS)
_PER_GUESS = 0.05
"""What each further guess costs a solved word."""
_RULES = """\
Find the hidden word: a common English word of {length} letters. You have {guesses} guesses.
Reply with <guess>word</guess>. {allowed} You are told for each letter: {green}, it is in its place; {yellow}, the \
word has it elsewhere; {grey}, the word has it not (or not once more). A reply without a guess costs one too."""


class WordleArgs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of wordle. Raises ValueError where an unsolved word could earn more than a solved one."""

    max_guesses: Annotated[int, Meta(ge=1, le=15, description="Guesses; sampling.max_turns has to allow them.")] = 6
    guesses: Annotated[
        Literal["any", "listed"], Meta(description="What may be guessed: any five letters, or words of our list alone.")
    ] = "any"
    near: Annotated[
        float, Meta(ge=0, le=1, description="What all letters of an unsolved word would earn, in their places.")
    ] = 0.25

    def __post_init__(self) -> None:
        least = 1 - _PER_GUESS * (self.max_guesses - 1)
        if self.near > least:
            raise ValueError(
                f"near {self.near} is above the {least:.2f} that a word earns which guess {self.max_guesses} solves"
            )


class Wordle(Environment[WordleArgs]):
    """Guess a hidden word of five letters.

    Task: up to `max_guesses` turns, each a guess in <guess> tags, answered letter by letter.
    Data: 1,082 common words of our own list, 119 of them held out. Licence: ours.
    Arguments: `max_guesses`, `guesses`, `near`.
    Reward: solved, 1 less .05 for each guess before the last; else `near` (.25) times the best guess's share of
    letters, where one in its place counts 1, one elsewhere 1/2. A reply without a guess that is allowed costs a turn.
    Checked: a player who guesses what all answers allow solves every word, by 3.2 guesses in the mean, and earns .89;
    one who guesses words of the list at random earns .09. Means of the train split, worked out by the tests for a part.
    """

    name = "wordle"
    args_type = WordleArgs

    def __init__(self, args: WordleArgs) -> None:
        super().__init__(args)
        # By their digests: a run that goes through them in order meets no alphabet.
        self._words = {
            split: sorted((word for word in WORDS if is_held_out(word) == (split is Split.EVAL)), key=digest)
            for split in Split
        }

    def count(self, split: Split) -> int:
        return len(self._words[split])

    def problem(self, split: Split, index: int) -> Problem:
        word = self._words[split][index]
        allowed = "Any letters will do." if self.args.guesses == "any" else "It has to be a common word."
        rules = _RULES.format(
            length=_LENGTH,
            guesses=self.args.max_guesses,
            allowed=allowed,
            green=GREEN,
            yellow=YELLOW,
            grey=GREY,
        )
        return Problem(key=digest(word)[:16], messages=[Message("user", rules)], data={"word": word})

    async def start(self, problem: Problem) -> "_Game":
        return _Game(problem.data["word"], self.args.max_guesses)

    async def step(self, state: "_Game", reply: Message) -> list[Message] | None:
        guess = self._guess(reply)
        state.left -= 1
        if guess == state.word or state.left <= 0:
            return None
        return [Message("user", _answered(state.word, guess, state.left))]

    def reward(self, problem: Problem, rollout: PlayedRollout) -> float:
        """See the class. Metrics: `solved`, `guesses`, `invalid_guesses`, and `letters`, the best guess's share."""
        word: str = problem.data["word"]
        replies = [message for message in rollout.messages if message.role == "assistant"]
        guesses = [self._guess(reply) for reply in replies[: self.args.max_guesses]]
        is_solved = word in guesses
        letters = max((_share(feedback(word, guess)) for guess in guesses if guess is not None), default=0.0)
        rollout.metrics["solved"] = float(is_solved)
        rollout.metrics["guesses"] = float(len(guesses))
        rollout.metrics["invalid_guesses"] = float(guesses.count(None))
        rollout.metrics["letters"] = letters
        return 1.0 - _PER_GUESS * guesses.index(word) if is_solved else self.args.near * letters

    def solution(self, problem: Problem) -> list[Message]:
        """Guess among the words that all answers so far allow; the last guess is lucky."""
        word: str = problem.data["word"]
        # Of its own split: a model that imitates this must not meet held-out words as guesses.
        left = self._words[Split.EVAL if is_held_out(word) else Split.TRAIN]
        messages = list(problem.messages)
        for remaining in reversed(range(self.args.max_guesses)):
            guess = _commonest(left) if remaining else word
            messages.append(Message("assistant", f"<guess>{guess}</guess>"))
            if guess == word:
                break
            messages.append(Message("user", _answered(word, guess, remaining)))
            told = feedback(word, guess)
            left = [each for each in left if each != guess and feedback(each, guess) == told]
        return messages

    def _guess(self, reply: Message) -> str | None:
        """The word that a reply guesses; None: none that is allowed."""
        guess = (in_tag(without_thoughts(reply.text), "guess") or "").strip().lower()
        is_allowed = guess in _LISTED if self.args.guesses == "listed" else guess.isascii() and guess.isalpha()
        return guess if len(guess) == _LENGTH and is_allowed else None


@dataclass(slots=True)
class _Game:
    word: str
    left: int
    """Guesses."""


def feedback(word: str, guess: str) -> str:
    """A letter of G, Y and X for each letter of a guess; both have the same length.

    A letter of the word answers for one letter of the guess: first for those in their place, then from the left.
    """
    unmatched = Counter(letter for letter, guessed in zip(word, guess, strict=True) if letter != guessed)
    told = []
    for letter, guessed in zip(word, guess, strict=True):
        if letter == guessed:
            told.append(GREEN)
        elif unmatched[guessed]:
            unmatched[guessed] -= 1
            told.append(YELLOW)
        else:
            told.append(GREY)
    return "".join(told)


def _answered(word: str, guess: str | None, left: int) -> str:
    shown = (
        f"{' '.join(guess.upper())}\n{' '.join(feedback(word, guess))}"
        if guess
        else "That is no guess: reply with <guess>word</guess>, a word of five letters."
    )
    return f"{shown}\nGuesses left: {left}"


def _share(told: str) -> float:
    return (told.count(GREEN) + 0.5 * told.count(YELLOW)) / len(told)


def _commonest(words: Sequence[str]) -> str:
    """The word whose letters most of the words have."""
    have = Counter(letter for word in words for letter in set(word))
    return max(words, key=lambda word: sum(have[letter] for letter in set(word)))
