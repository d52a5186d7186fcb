"""What programs tell: lines of logs, spans, and of an exception what quotes no data.

Imports errors and failures only.
"""
