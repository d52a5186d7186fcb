"""From what went wrong to an answer: as RFC 9457 has it, and in the forms of other servers' clients."""
