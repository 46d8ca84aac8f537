"""Network architectures, each with a `body` and a `head`, and scikit-learn classifiers."""
