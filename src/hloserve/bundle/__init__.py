"""The format on disk: manifest, axes, weights, layout, writing."""
