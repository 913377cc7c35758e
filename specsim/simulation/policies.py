"""What a server drafts at a batch size: always the same, nothing above a batch size, or a table of steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self, final

import numpy as np

from specsim.cost.terms import PLAIN
from specsim.errors import ConfigurationError
from specsim.methods import method_named
from specsim.quantities import IntArray, SpecConfig


@final
@dataclass(frozen=True)
class Policy:
    """Configurations by batch size: `specs[i]` runs from `from_batch[i]` requests on, until the next one does.

    That is vLLM's num_speculative_tokens_per_batch_size, its older disable_by_batch_size, and SGLang's adaptive table
    with one candidate a row. Configurations of no drafts are plain decode. Raises ConfigurationError for a table that
    does not start at 1 or ascend, or whose configurations are not chains of one method where they differ in drafts.
    """

    from_batch: tuple[int, ...]
    specs: tuple[SpecConfig, ...]

    def __post_init__(self) -> None:
        starts = list(self.from_batch)
        if not starts or starts[0] != 1 or starts != sorted(set(starts)) or len(starts) != len(self.specs):
            raise ConfigurationError(
                f"a policy's batch sizes start at 1 and ascend, one a configuration; these are {starts}"
            )
        drafting = set(self.drafting)
        bounded = all(method_named(spec.method).steps_bound_length and spec.topk == 1 for spec in drafting)
        if len(drafting) > 1 and not (bounded and len({spec.method for spec in drafting}) == 1):
            raise ConfigurationError("a policy of several configurations takes chains (topk 1) of one method")

    @classmethod
    def fixed(cls, spec: SpecConfig) -> Self:
        """One configuration at every batch size; PLAIN is a server without speculation."""
        return cls((1,), (spec,))

    @classmethod
    def off_above(cls, spec: SpecConfig, batch_size: int) -> Self:
        """One configuration up to a batch size, plain decode above it."""
        return cls((1, batch_size + 1), (spec, PLAIN))

    @classmethod
    def steps_by_batch(cls, table: Iterable[tuple[int, int]], method: str = "eagle") -> Self:
        """Chains by (batch size from which it holds, drafts); 0 drafts are plain decode."""
        rows = sorted(table)
        specs = tuple(
            SpecConfig.of(num_draft_tokens=drafts + 1, method=method) if drafts else PLAIN for _, drafts in rows
        )
        return cls(tuple(start for start, _ in rows), specs)

    @property
    def drafting(self) -> tuple[SpecConfig, ...]:
        """The configurations that draft, without repeats."""
        return tuple(dict.fromkeys(spec for spec in self.specs if spec.num_steps > 0))

    @property
    def configurations(self) -> tuple[SpecConfig, ...]:
        """All configurations without repeats; those that do not draft are one, PLAIN."""
        return tuple(dict.fromkeys(spec if spec.num_steps > 0 else PLAIN for spec in self.specs))

    @property
    def deepest(self) -> SpecConfig | None:
        """The configuration that drafts most steps, None where nothing drafts."""
        return max(self.drafting, key=lambda spec: int(spec.num_steps), default=None)

    def by_batch(self, most: int) -> IntArray:
        """Which of `configurations` runs at 0 … `most` requests, shape (most + 1,); at 0 the one of 1."""
        row = np.searchsorted(self.from_batch, np.arange(most + 1), side="right") - 1
        index = {spec: at for at, spec in enumerate(self.configurations)}
        of_row = np.array([index[spec if spec.num_steps > 0 else PLAIN] for spec in self.specs])
        return np.asarray(of_row[np.maximum(row, 0)])

    def __str__(self) -> str:
        if len(self.specs) == 1:
            return _named(self.specs[0])
        later = (f"{start}+: {_named(spec)}" for start, spec in zip(self.from_batch[1:], self.specs[1:], strict=True))
        return ", ".join([_named(self.specs[0]), *later])


def _named(spec: SpecConfig) -> str:
    if spec.num_steps == 0:
        return "plain decode"
    return f"{spec.num_steps}/{spec.topk}/{spec.num_draft_tokens}"
