"""Which code turns records into bytes and back: the compiled kernel, or aiokafka's extension.

Both obey the same rules and tests. `record_kernel` is several times as fast, and there only where
it was compiled; as plain Python it is far slower than the extension, so it is not used then.
"""

from __future__ import annotations

import functools
from importlib.util import find_spec

KERNEL = "onceflow.sdk.protocol.record_kernel"


@functools.cache
def kernel_in_use() -> bool:
    """Whether the compiled kernel is there. Finding out does not load it."""
    spec = find_spec(KERNEL)
    return spec is not None and spec.origin is not None and not spec.origin.endswith(".py")
