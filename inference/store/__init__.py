"""Job rows as the database takes them, and the fence around them: who may claim a job and record its outcome.
Imports the models, the catalog and nothing above.
"""
