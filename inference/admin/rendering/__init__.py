"""How facts, inputs and outputs look on the operator's pages; all that others wrote is escaped here."""
