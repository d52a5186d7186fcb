"""Files of requests, and the batches that answer their lines: OpenAI's Files and Batch APIs over jobs."""
