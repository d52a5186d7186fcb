"""What goes out: jobs, models and problems as JSON."""
