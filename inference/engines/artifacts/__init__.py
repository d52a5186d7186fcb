"""The files of a model: where its weights are, whether they may be loaded, and which files were made of them."""
