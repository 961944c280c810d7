"""What was brought here, for as long as it is wanted. Disposable."""
