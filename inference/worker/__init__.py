"""The worker: its main process consumes and batches (`consumer`), its pool children run the models (`child`)."""
