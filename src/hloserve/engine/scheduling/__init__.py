"""What runs next on the device, and how much of it at once."""
