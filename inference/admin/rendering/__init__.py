"""The display of facts, inputs and outputs on the operator's pages, with all escaped that clients and models wrote."""
