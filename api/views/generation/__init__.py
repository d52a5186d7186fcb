"""Views of OpenAI's interface to models that write and speak."""
