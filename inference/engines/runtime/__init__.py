"""The parts of an engine call that do not depend on the model: grouping, precision, isolation, faults."""
