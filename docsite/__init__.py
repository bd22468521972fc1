"""What makes the pages of `docs/` into a site, and its picture."""
