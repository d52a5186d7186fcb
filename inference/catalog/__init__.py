"""What models there are and what they take: models.toml read and checked, inputs and parameters validated, lengths
estimated. Imports no Django model, no broker and no torch.
"""
