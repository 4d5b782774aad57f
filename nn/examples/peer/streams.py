"""The numbers that every peer starts from, as measure.rs has them."""

import numpy as np


def mixed(stream, count):
    """SplitMix64 (Steele, Lea & Flood 2014) at the first places of a stream."""
    u = np.uint64
    with np.errstate(over="ignore"):
        z = u(stream) * u(0xD1342543DE82EF95)
        z = z + np.arange(1, count + 1, dtype=u) * u(0x9E3779B97F4A7C15)
        z = (z ^ (z >> u(30))) * u(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> u(27))) * u(0x94D049BB133111EB)
        return z ^ (z >> u(31))


def uniform(stream, shape):
    """float32 numbers uniform in [-1, 1)."""
    z = mixed(stream, int(np.prod(shape))) >> np.uint64(40)
    unit = z.astype(np.float32) * np.float32(1 / 8388608) - np.float32(1)
    return unit.reshape(tuple(shape))


def integers(stream, shape, modulo):
    """int64 numbers in 0..modulo."""
    z = (mixed(stream, int(np.prod(shape))) >> np.uint64(32)).astype(np.uint32) % np.uint32(modulo)
    return z.astype(np.int64).reshape(tuple(shape))
