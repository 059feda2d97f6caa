"""The messages of a prompt. The model's own chat template makes text of them: in training, verl's work."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Message = dict[str, str]

MESSAGES = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))


@dataclass(frozen=True)
class Rendering:
    """What stands around a question: system prompt, worked examples, instruction on a line of its own."""

    system_prompt: str | None
    instruction: str
    examples: Sequence[tuple[str, str]] = ()
    """Question and answer of each."""

    def messages(self, question: str) -> list[Message]:
        """Return the prompt of one question."""
        return [*self._before(), {"role": "user", "content": self._head + question}]

    def column(self, questions: pa.Array) -> pa.Array:
        """Return the prompts of many questions, as a column of verl's format."""
        before, count = self._before(), len(questions)
        contents = [pa.repeat(pa.scalar(message["content"], pa.string()), count) for message in before]
        contents.append(pc.binary_join_element_wise(pa.scalar(self._head), questions, ""))
        roles = [*(message["role"] for message in before), "user"]
        size = len(roles)
        # message by message of all prompts -> prompt by prompt
        order = np.arange(size * count).reshape(size, count).T.reshape(-1)
        each = pa.array(np.tile(np.arange(size), count))
        structs = pa.StructArray.from_arrays(
            [
                pa.array(roles).take(each),
                pa.concat_arrays(contents).take(pa.array(order)) if before else contents[0],
            ],
            ["role", "content"],
        )
        ends = pa.array(np.arange(0, (count + 1) * size, size, dtype=np.int32))
        return pa.ListArray.from_arrays(ends, structs).cast(MESSAGES)

    @property
    def _head(self) -> str:
        return f"{self.instruction}\n" if self.instruction else ""

    def _before(self) -> list[Message]:
        found = [{"role": "system", "content": self.system_prompt}] if self.system_prompt else []
        for question, answer in self.examples:
            found.append({"role": "user", "content": self._head + question})
            found.append({"role": "assistant", "content": answer})
        return found
