"""A table from numbers to small values, for compiled code: open addressing with linear probing, in plain arrays.

Numbers are cells, or pairs of places in a graph. None is EMPTY, which marks a free entry. A table is never more than
half full; whoever fills it sees to that.
"""

import numpy as np
import numpy.typing as npt

from mario_rl.machine.compiling import compiled

EMPTY = -2
NOT_FOUND = -1
_MIX = 0x9E3779B97F4A7C15  # Fibonacci hashing: neighbouring numbers are spread over the whole table


def empty_table(capacity: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Numbers and values; `capacity` is a power of two."""
    return np.full(capacity, EMPTY, np.int64), np.zeros(capacity, np.int32)


@compiled
def entry_of(numbers: npt.NDArray[np.int64], number: int) -> int:
    """Where a number lies, or would be put."""
    mask = len(numbers) - 1
    mixed = np.uint64(number) * np.uint64(_MIX)
    entry: int = np.int64(mixed >> np.uint64(33)) & mask  # type: ignore[assignment]
    while numbers[entry] != number and numbers[entry] != EMPTY:
        entry = (entry + 1) & mask
    return entry


@compiled
def look_up(numbers: npt.NDArray[np.int64], values: npt.NDArray[np.int32], number: int) -> int:
    """A number's value, or NOT_FOUND."""
    entry = entry_of(numbers, number)
    return int(values[entry]) if numbers[entry] == number else NOT_FOUND


@compiled
def look_up_all(
    numbers: npt.NDArray[np.int64],
    values: npt.NDArray[np.int32],
    wanted: npt.NDArray[np.int64],
    found: npt.NDArray[np.int32],
) -> None:
    """The values of some numbers, NOT_FOUND where there is none."""
    for place in range(len(wanted)):
        found[place] = look_up(numbers, values, wanted[place])


@compiled
def fill_table(
    numbers: npt.NDArray[np.int64], values: npt.NDArray[np.int32], new_numbers: npt.NDArray[np.int64], first: int
) -> None:
    """Put numbers into a table, with their places, counted from `first`, as values."""
    for place in range(len(new_numbers)):
        entry = entry_of(numbers, new_numbers[place])
        numbers[entry] = new_numbers[place]
        values[entry] = first + place
