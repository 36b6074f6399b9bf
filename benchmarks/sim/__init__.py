"""Traffic on a device that is not there: disciplines, batch planning and residency, on a clock."""
