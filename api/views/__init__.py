"""The views, thin and alike: each reads the request, has `inference` do what it asks for, and answers."""
