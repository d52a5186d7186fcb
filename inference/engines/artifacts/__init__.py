"""The files of a model: where its weights are, whether they may be loaded, and what was made of them."""
