"""The peers, each as its own documentation shows it, over the same pipeline.

One file a peer. Each takes `POST {"inputs": text}` and answers with the pipeline's output for that text.
"""
