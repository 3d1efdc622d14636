"""What benchmarks share: engines and clients of their own, and the form of their reports."""
