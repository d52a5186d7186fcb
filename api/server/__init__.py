"""Code that every request passes through, whatever its address: middleware, bodies, thread limits and traces."""
