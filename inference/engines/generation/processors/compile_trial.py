"""The trial of a grammar in a process of its own, which ends where llguidance takes too long or too much memory.

llguidance bounds the size of what it compiles, but not the time, and what it has begun cannot be stopped. How long it
takes cannot be told from a schema without doing what it does.
"""

import functools
import os
import resource
import subprocess
import sys

import llguidance

MOST_CPU_S = 2
MOST_BYTES = 2**30
MOST_STATES = 100_000  # of a compiled grammar, each of about 1 kB
# Schemas without these keywords mostly take milliseconds, and 1 to 2 s at most: llguidance's own bounds end the rest.
KEYWORDS = ("allOf", "multipleOf", "pattern", "patternProperties")


@functools.lru_cache(maxsize=64)
def is_compiled_soon(source: str, cpu_s: int = MOST_CPU_S, size: int = MOST_BYTES) -> bool:
    """Return True if a grammar in llguidance's language is compiled within `cpu_s` seconds of CPU and `size` bytes.

    One that llguidance refuses within these is compiled soon, too. Raises `OSError` if no process can be started, and
    `RuntimeError` if it fails for other reasons.
    """
    if not any(f'"{keyword}"' in source for keyword in KEYWORDS):
        return True
    # Each thread and each arena of malloc would take address space, which is what can be limited.
    environment = {**os.environ, "MALLOC_ARENA_MAX": "1", "RAYON_NUM_THREADS": "1"}
    command = [sys.executable, "-P", __file__, str(cpu_s), str(size)]
    ended = subprocess.run(command, input=source.encode(), capture_output=True, check=False, env=environment)
    if ended.returncode > 0 and b"MemoryError" not in ended.stderr:
        raise RuntimeError(f"the trial of a grammar failed: {ended.stderr.decode(errors='replace')}")
    return ended.returncode == 0


def make_limits() -> llguidance.LLParserLimits:
    return llguidance.LLParserLimits(max_lexer_states=MOST_STATES, verbose_errors=False)


def compile_within_limits(source: str, cpu_s: int, size: int) -> None:
    """Compile a grammar and find its first mask, in a process that its limits end."""
    for kind, limit in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_CPU, cpu_s), (resource.RLIMIT_AS, size)):
        _, allowed = resource.getrlimit(kind)
        lowered = limit if allowed == resource.RLIM_INFINITY else min(limit, allowed)
        resource.setrlimit(kind, (lowered, lowered))
    matcher = llguidance.LLMatcher(llguidance.LLTokenizer("byte"), source, log_level=0, limits=make_limits())
    matcher.compute_bitmask()


if __name__ == "__main__":
    compile_within_limits(sys.stdin.buffer.read().decode(), *map(int, sys.argv[1:]))
