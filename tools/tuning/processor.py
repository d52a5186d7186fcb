"""The features of this machine's processor that make short numbers fast, and its load by other programs."""

import os
from collections.abc import Iterator
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
# The flags by which Linux shows each feature, of x86 and of ARM.
FEATURES = {
    "AVX2": {"avx2"},
    "AVX-512": {"avx512f"},
    "VNNI (int8)": {"avx512_vnni", "avx_vnni"},
    "AVX-512 bf16": {"avx512_bf16"},
    "AMX (int8 and bf16)": {"amx_tile"},
    "NEON": {"asimd"},
    "I8MM (int8)": {"i8mm"},
    "bf16": {"bf16"},
}


SHORT = ("VNNI (int8)", "AVX-512 bf16", "AMX (int8 and bf16)", "I8MM (int8)", "bf16")


def describe_processor(cpuinfo: Path = CPUINFO) -> str:
    """Return a line that names the features of the processor."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:  # on macOS
        return "This machine does not say what its processor can."
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    flags = set((fields.get("flags") or fields.get("Features") or "").split())
    has = [name for name, any_of in FEATURES.items() if flags & any_of]
    lacks = "" if set(has) & set(SHORT) else ", but nothing for bfloat16 or int8: what these gain is measured"
    return f"{fields.get('model name', 'This processor')} has {', '.join(has) or 'none of what counts here'}{lacks}."


def warn_of_other_load(cores: int, load: float | None = None) -> Iterator[str]:
    """Yield a warning with the number of cores that other programs keep busy, if that spoils the measurements.

    `load` is the mean number of running threads in the last minute, by default that of the system.
    """
    busy = os.getloadavg()[0] if load is None else load
    if busy > max(0.5, cores / 4):
        yield (
            f"Other programs kept {busy:.1f} of {cores} cores busy before this began: what is measured is too slow, and"
            " may recommend something else. Stop them, and measure again."
        )
