"""What holds for every request, whatever its address: middleware, bodies, limits of threads, and traces."""
