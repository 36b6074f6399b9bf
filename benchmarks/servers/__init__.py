"""The servers that hloserve is compared with in the same run. Each prints its port."""
