"""Text that Transformers generates: it is as long as it may be, since nobody computes where it ends."""

from __future__ import annotations

from typing import Any

#: Whether the length that was asked for is reached.
IS_LONG_ENOUGH = False


def begin(module: Any) -> None:
    """Of Transformers' module ``generation.utils``."""
    criteria = module.StoppingCriteriaList
    ask = criteria.__call__

    def asked(self: Any, words: Any, scores: Any, **kwargs: Any) -> Any:
        global IS_LONG_ENOUGH
        lengths = [criterion.max_length for criterion in self if getattr(criterion, "max_length", None)]
        IS_LONG_ENOUGH = any(words.shape[1] >= length for length in lengths)
        return ask(self, words, scores, **kwargs)

    def has_unfinished(_self: Any, _finished: Any, *_args: Any, **_kwargs: Any) -> bool:
        global IS_LONG_ENOUGH
        is_over, IS_LONG_ENOUGH = IS_LONG_ENOUGH, False
        return not is_over

    criteria.__call__ = asked
    module.GenerationMixin._has_unfinished_sequences = has_unfinished
