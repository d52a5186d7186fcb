"""How operations and answers are described in the OpenAPI document."""
