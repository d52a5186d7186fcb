"""What is known of the running service: living workers, backlog, health, metrics. Reads, and changes nothing."""
