"""What a thread does while it waits: it gives back its database connection and its compute slot, and is woken when its
job is finished. Imports the store and the broker.
"""
