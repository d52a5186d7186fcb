"""Text that is generated, as it comes: written by pool children, read by the requests that stream it."""
